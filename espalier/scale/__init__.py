"""Training beyond one process: the trainer's Ray backend.

Begin at `computer`: `Ray` is the setting, `RayComputer` what the ledger calls. A wave of jobs is cut into batches
(`batches`), a `pool` of actors carries them out (`worker`, which knows no Ray), models go out through the object
store once per version, samples in shards to the nodes that look at them (`shards`), and what comes back is
partial sums wherever the ledger needs no more (`cluster` finds Ray). Evaluations go the same way, in portions.
"""
