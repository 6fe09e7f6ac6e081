"""The report: one HTML page about runs, from a file or live, and figures for notebooks.

Begin at `page`, which puts the `sections` together: `reading` reads a run, `groups` compares them, `verdict` judges,
and a module per picture (`curves`, `spread`, `tree`, `timeline` …) returns plain Plotly tables. `server`, `live_parts`
and `live_process` serve the same page while runs go on. May import `core`, `record` and `study`.
"""
