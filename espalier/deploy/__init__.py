"""A real fleet: the same nodes and policies, driven by real messages and timers.

A reader's path: `host` (one process: links, engine, timers) → `engine` (events in, effects out, on disk before they
happen) → `directory` (what a node knows of the fleet) → `mail` (letters: numbered, acknowledged, resent) → `transport`
(gRPC streams with mutual TLS) → `wire` (messages as protobuf). `cloud` conducts a run, `learner` trains on a device,
`fleet` starts a whole fleet on one machine.
"""
