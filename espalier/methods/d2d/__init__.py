"""Learning–topology co-optimisation over device-to-device links: clusters that learn in the fleet's direction, fast.

M. Wu, M. Boban, F. Dressler: *Hierarchical Federated Learning in Device-to-Device Networks with Learning-Topology
Co-Optimization*. Begin at `method`: `structure` is the server's part of a global round, `member` the devices' and
heads'. `study` and `figures` reproduce the tables under `settings`; `published.toml` has the paper's figures,
`notes.toml` how ours differ. The method may import `core` and `policies`, the study what describes and reads
experiments. The arithmetic is pure functions of arrays:

    clusters   a split of the fleet, and how large its parts may be
    alignment  Eq. (3): how far a cluster's learning direction, or its label mix, is from the fleet's
    timing     Eq. (4) and (5): a cluster's round time and its head
    swap       Algorithms 2 and 3: the search, where it begins, and which exchanges are worth making
    spectral   benchmarks A and A+
    clustering the search and the benchmarks by name
    features   what a device tells the server about its learning direction, and what that costs
    theory     gradient mismatch, the terms of Eq. (10) and (11), when a cheaper feature pays
    defence    links claimed differently by their two ends, members that throttle themselves
"""
