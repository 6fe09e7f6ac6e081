"""Secure aggregation: a server learns the sum of its clients' numbers and nothing else of them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, against a server and
clients that follow the protocol but look at all they get. Four messages each way::

    0  client → server   two public keys                      server → clients   everybody's public keys
    1  client → server   encrypted shares of its two secrets  server → clients   the shares meant for each
    2  client → server   masked numbers                       server → clients   who is still there
    3  client → server   shares that take the masks off       server             the sum

A client that is lost after message 1 is made up for as long as ``threshold`` clients answer message 3.
"""

from espalier.secure.client import Client
from espalier.secure.server import Server

__all__ = ["Client", "Server"]
