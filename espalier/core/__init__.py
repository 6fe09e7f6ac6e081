"""Nodes, messages, policies, models as flat vectors: no IO in any of it.

    nodes       `aggregator` (with its `rounds` and `aggregator_state`) and `device`, state machines that take events
                and return actions (`messages`); `runtime` drives them, `run_rounds` counts the run's rounds and ends it
    decisions   `method` bundles `policies` (a device's in `local`, the guard's in `guard`, serving in `serving`); they
                see a `view` and an `environment`, and remember in `memory`
    models      `params` (flat vectors), `store` (by reference), `quantise`; `learning` and `objectives` say how they
                are trained, `statistics` what devices compute of their data
    plain data  `spec` with `bounds` and `coerce` (configuration), `codec` (saving, sending), `address`, `tree`,
                `seeds`, `errors`, `code` (a user's own, by name)

Begin with `messages`, `policies` and `aggregator`.
"""
