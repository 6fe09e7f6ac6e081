"""The record: a run's database, written while it goes on, and reading it back.

Begin at `run` (`Run`, `find_runs`, `Comparison` of several); `database` has the schema and the writer,
`measures` says what figures are called and which way one is better. May import `core`, and `experiment` to build a
saved model.
"""
