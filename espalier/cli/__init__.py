"""The command ``espalier``: a face of everything else; nothing imports it.

Begin at `main`, which imports a subcommand's module when it is called; `plan` says what is left to do in a directory,
`pool` runs it, `show` makes tables of runs, `cards` tells what methods say of themselves.
"""
