"""Nodes, messages, policies, models as flat vectors: no IO in any of it."""
