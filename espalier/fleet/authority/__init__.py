"""Who may say what on a fleet: the table of rules (`rules`), what fields may hold (`fields`), and the check (`check`).

Members of a fleet are not trusted. A host opens letters in one place (`espalier.fleet.node.inbox`) and asks here before
anything of a letter is stored, relayed or acted on. Begin with `rules`.
"""
