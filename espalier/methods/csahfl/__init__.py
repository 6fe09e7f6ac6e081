"""CSAHFL (Li et al., IJCAI 2025): clusters by principal angles, semi-asynchronous edges, merging by distribution.

Begin at `method`, which also has the cloud's merge. `subspace` finds the clusters, `semi_async` paces the edges.
`world` is the paper's, `study` reproduces its tables; `published.toml` has its figures, `notes.toml` how ours differ.
The method may import `core` and `policies`, `world` the world, `study` what describes and reads experiments.
"""
