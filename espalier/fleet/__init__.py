"""A real fleet: the same nodes and policies as in the simulator, driven by real messages, timers and training.

Every node is a *host* (a process). A reader's path from the command line inwards:

    launch ─ options become a host            fleet ─ a whole fleet on one machine
    host ── links, timers, worker, engine     uplink, reception, peers ─ links up, down, sideways
    engine ─ events in, effects out, one transaction on disk      desk ─ messages become letters and back
    coordinator / follower ─ what differs between the cloud and everybody else
    mail, post, letters, transport, wire ─ letters: numbered, passed on, cut into chunks, streamed, encoded
    trainer, clients, holdings ─ training on a node's own data

Words: a *letter* is a message with its models on its way from one host to another; a *charter* is what the cloud tells
everybody (experiment, task, limits); a *member* is a host as others know it; a *steward* is the
coordinator or a participant. `docs/deployment.md` has the whole map.
"""
