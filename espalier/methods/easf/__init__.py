"""EASF (Xu et al., IEEE TMC): devices build their own aggregation tree and set their own update frequencies.

Begin at `method`, which also has the paper's baselines. `dsf` builds and keeps the tree; `aaf` (with `prediction`),
`raf` and `frequency` say how often a child updates, `abandon` how long a parent waits; `kma` and `control` are the
central baseline. `study` reproduces the paper's tables under `settings`; `published` has its figures. May import
`core`, `policies`, `data`, `world` and, in `study`, everything that runs an experiment.
"""
