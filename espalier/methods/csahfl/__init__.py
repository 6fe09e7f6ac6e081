"""CSAHFL (Li et al., IJCAI 2025): clusters by principal angles, semi-asynchronous edges, merging by distribution.

Begin at `method`. `subspace` and `one_shot` find the clusters, `semi_async` paces the edges, `distribution` merges at
the cloud. `study` reproduces the paper's tables under `settings`; `published` has its figures. May import `core`,
`policies`, `data`, `world` and, in `study`, everything that runs an experiment.
"""
