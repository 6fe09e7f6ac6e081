"""Studies: the papers' tables and figures as runs, what is read off them, and what was published.

Begin at `base` (`Study`) and `results`; `claims` judges, `archive` knows what is kept of all studies, `tables` and
`pages` write it down. The studies themselves lie beside their methods (`methods/<paper>/study.py`), with the paper's
figures, claims and page. May import `core`, `experiment`, `settings` and `record`.
"""
