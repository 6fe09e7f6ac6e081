"""Virtual time: events, the lazy ledger, measuring, checkpoints.

    run       `runner` (one run in a `directory`, saved by `checkpoint`) and `simulation`, which makes all parts of one
    time      `clock`; `world_process` lets the world act, `delivery` gives nodes what happens to them, `transport` says
              when messages arrive, `device_work` when trainings are done; `conditions` is the world of now
    models    `ledger` writes trainings and sums down (`jobs`), `wave` computes them, `reduction` adds; `task` makes
              trainer's jobs of them, `dataviews` says what a device's data look like, `attacks` what hostile ones do
    answers   `environment` is what nodes can ask, `trials` what takes a computation beside the run (in `portions`)
    figures   `meter` writes them down: scores by `metrics` and `serving`, bytes and seconds by `usage`

Begin with `simulation`, `ledger` and `wave`.
"""
