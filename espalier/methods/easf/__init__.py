"""EASF (Xu et al., IEEE TMC): devices build their own aggregation tree and set their own update frequencies.

Begin at `method`, which also has the paper's baselines. `dsf` builds and keeps the tree; `aaf` and `paces` say how
often a child updates and how long a parent waits; `kma` and `control` are the central baseline. `world` is the
paper's, `study` reproduces its tables under `settings`; `published.toml` has its figures, `notes.toml` how ours
differ. The method may import `core` and `policies`, `world` the world, the others what describes and reads
experiments.
"""
