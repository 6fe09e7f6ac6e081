"""Arithmetic of learning–topology co-optimisation over device-to-device links.

M. Wu, M. Boban, F. Dressler: *Hierarchical Federated Learning in Device-to-Device Networks with
Learning-Topology Co-Optimization*. Everything here is a pure function of arrays; the method that runs
the four-stage round is built on top of it.

    clusters   a split of the fleet, and how large its parts may be
    alignment  Eq. (3): how far a cluster's learning direction, or its label mix, is from the fleet's
    timing     Eq. (4) and (5): a cluster's round time and its head
    rule       which exchanges between two clusters are worth making
    swap       Algorithms 2 and 3: the search, and where it begins
    spectral   benchmarks A and A+
    clustering the search and the benchmarks by name
    features   what a device tells the server about its learning direction, and what that costs
    theory     gradient mismatch, the terms of Eq. (10) and (11), when a cheaper feature pays
    defence    links claimed differently by their two ends, members that throttle themselves
"""
