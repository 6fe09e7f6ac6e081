"""HiFlash (Wu et al., TPDS 2023): asynchronous edges under a staleness limit that is learnt.

Begin at `method`. `staleness_control` has the limits, `staleness_proxy` and `q_learning` learn one. May import `core`
and `policies`.
"""
