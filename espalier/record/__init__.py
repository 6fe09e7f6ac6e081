"""The record: a run's database, written while it goes on, and reading it back.

Begin at `run` (`Run`, `find_runs`); `database` has the schema and the writer, `table` the figures of a comparison,
`measures` which way a figure is better. May import `core`, and `experiment` to build a saved model.
"""
