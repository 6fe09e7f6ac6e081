"""PHE-FL (Lee et al., arXiv 2504.08872): every edge mixes its own model with what all others have learnt.

Begin at `method`. `personal` is the mixing, `partition` deals the paper's layouts D1 to D4, `measures` has Acc_N and
Drop_M, `study` reproduces the paper's tables. May import `core`, `policies`, `data`, `world` and, in `study`,
everything that runs an experiment.
"""
