"""The protocol's messages: `espalier.proto` and what protoc 29 made of it.

To make it anew after a change: ``pip install grpcio-tools==1.71.2`` into an environment of its own, then
in `espalier/fleet/links/protocol`: ``python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. espalier.proto``.
Older generated code runs with newer runtimes of protobuf, not the other way round.
"""
