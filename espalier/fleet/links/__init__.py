"""Bytes between hosts: streams, frames, delivery, relaying, and who may open a link at all."""
