"""What several methods share: merges, clustering, association, pacing, distances.

Begin with `local_policies`, `robust_merges` and `server_optimizers`: a configuration can put what they have into any
method. Their arithmetic lies beside them as pure functions: `robust`, `dendrogram`, `update_clustering`.
"""
