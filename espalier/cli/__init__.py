"""The command ``espalier``: a face of everything else; nothing imports it.

Begin at `main`; `reproduce`, `report` and `node` have commands of their own, `plan` says what is left to do in a
directory, `pool` runs it, `show` makes tables.
"""
