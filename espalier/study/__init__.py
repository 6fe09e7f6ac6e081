"""Studies: the papers' tables and figures as runs, what is read off them, and what was published.

Begin at `base` (`Study`, `Results`); `tables` writes results down. The studies themselves lie beside their methods
(`methods/<paper>/study.py`). May import `core`, `experiment`, `settings` and `record`.
"""
