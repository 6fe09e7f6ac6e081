"""CFLHKD (Ahmad et al.): clusters by affinity, a model each, joined by knowledge distillation in two levels.

Begin at `method`. `affinity_clusters` finds the clusters, `edge_clusters` and `flat_affinity` place them, `bilevel`
merges and hands down, `drift_watch` notices that a device's labels have changed. `study` reproduces the paper's tables
under `settings`, read off by `measures`; `published` has its figures. May import `core`, `policies`, `data`, `world`
and, in `study`, everything that runs an experiment.
"""
