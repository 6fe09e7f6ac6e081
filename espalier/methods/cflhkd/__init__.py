"""CFLHKD (Ahmad et al.): clusters by affinity, a model each, joined by knowledge distillation in two levels.

Begin at `method`, which also has what devices do: they notice that their labels have changed. `fdc` has the affinities
and finds the clusters, `edge_clusters` and `flat_affinity` place them, `bilevel` merges and hands down. `world` is the
paper's, `study` reproduces its tables under `settings`, read off by `measures`; `published.toml` has its figures,
`notes.toml` how ours differ. The method may import `core` and `policies`, `world` the world, the others what describes
and reads experiments.
"""
