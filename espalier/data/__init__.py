"""Datasets, partitions, and the test distributions of edges and devices.

Begin at `dataset` (`Dataset`); `registry` finds one by name, `partition` deals it out.
"""
