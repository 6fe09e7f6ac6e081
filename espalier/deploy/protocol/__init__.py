"""The protocol's messages: `espalier.proto` and what protoc 29 made of it.

To make it anew after a change: ``pip install grpcio-tools==1.71.2`` into an environment of its own, then
``python -m grpc_tools.protoc -I espalier/deploy/protocol --python_out=espalier/deploy/protocol
--pyi_out=espalier/deploy/protocol espalier/deploy/protocol/espalier.proto``. Older generated code runs with newer
runtimes of protobuf, not the other way round.
"""
