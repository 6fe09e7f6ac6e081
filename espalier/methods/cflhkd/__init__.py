"""CFLHKD (Ahmad et al.): clusters by affinity, a model each, joined by knowledge distillation in two levels.

Begin at `method`. `fdc` finds the clusters, `edge_clusters` and `flat_affinity` place them, `bilevel` merges and hands
down, `drift_watch` notices that a device's labels have changed. `world` is the paper's, `study` reproduces its tables
under `settings`, read off by `measures`; `published.toml` has its figures. The method may import `core` and `policies`,
`world` the world, the others what describes and reads experiments.
"""
