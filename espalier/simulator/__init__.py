"""Virtual time: events, the lazy ledger, measuring, checkpoints."""
