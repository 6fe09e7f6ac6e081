"""The methods: one file per small method, one package per paper with its policies, partition, measures and study.

A method file imports `core` and `policies`, nothing else; a paper's study also what describes and reads experiments.
Begin at `hierfavg`. `bundled` lists them all: it is what the package announces through the entry-point group
``espalier.methods``, as other packages announce theirs.
"""
