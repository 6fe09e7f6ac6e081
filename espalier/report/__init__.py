"""The report: one HTML page about runs, from a file or live, and figures for notebooks.

Begin at `page`, which puts the `sections` together: `reading` reads a run, `groups` puts runs side by side, `verdict`
ranks them at an equal `budget` and says how sure that is (`standings`), and a module per picture (`curves`,
`spread`, `tree`, `timeline` …) returns plain Plotly tables. `server`, `live_parts` and `endpoint` serve the same page
while runs go on. What draws and exports in the browser is in `assets`. May import `core`, `record` and `study`.
"""
