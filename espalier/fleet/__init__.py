"""A real fleet: the same nodes and policies as in the simulator, driven by real messages, timers and training.

Every member of a fleet is a *host*: a process with a certificate. Messages between nodes travel as *letters*: numbered,
kept in an outbox until they are acknowledged, relayed, taken once. Members are not trusted: what a letter says is
checked against the table of who may say what before it has any effect.

    authority/    who may say what: the table, what fields may hold, the check
    links/        links to parent, children and peers; admission, routes, relay, delivery, framing, the wire
    node/         one host: launch (options become a host), host, engine, inbox, outbox, journal, training
    coordinator/  what the cloud does besides: manifest, enrolment, the tree, the record; the member's counterpart
    secure/       secure aggregation: a child's part and an aggregator's
    certs, membership, status, local    certificates; who is who; what operators see; a whole fleet on one machine

Begin with `node/host` (what a process is made of), `node/engine` (events in, effects out, one transaction on disk) and
`authority/rules`. `docs/deployment.md` says how it is used and what is guaranteed.
"""
