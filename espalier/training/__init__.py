"""Training: jobs, the batched trainer, models and evaluation.

A `TrainerJob` (`work.py`) names a start vector, a device's rows and an optimizer. The `Trainer` computes many at
once by the merged-batch engine (`merged/`), or one by one (`sequential.py`) where a model forbids it. The
`Evaluator` counts what models get right, cell by cell. `models/` holds the bundled models. Begin at `trainer`, and in
`merged/` at its `engine`. May import `core` alone.
"""
