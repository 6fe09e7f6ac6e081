"""Secure aggregation on a fleet: a child's part and an aggregator's part of `espalier.secure`'s protocol."""
