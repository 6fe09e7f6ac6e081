"""PHE-FL (Lee et al., arXiv 2504.08872): every edge mixes its own model with what all others have learnt.

Begin at `method`. `personal` is the mixing, `partition` deals the paper's layouts D1 to D4, `world` is the paper's,
`study` has Acc_N and Drop_M and reproduces its tables; `published.toml` has its figures, `notes.toml` how ours differ.
The method may import `core` and `policies`, `partition` the data, `world` the world, `study` what describes and reads
experiments.
"""
