"""Secure aggregation: a server learns the sum of its clients' numbers and nothing else of them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, over the sparse graph
of Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020 (`graph`). Each way::

    0  client → server   public keys, signed for each neighbour    server → clients   their neighbours' keys
    1  client → server   sealed shares of its two secrets          server → clients   the shares meant for each
    2  client → server   masked numbers                            server → clients   who is still there
    3  client → server   shares that take the masks off            server             the sum

A client that is lost after message 1 is made up for as long as ``threshold`` of its neighbours and itself answer
message 3. Keys are signed with the clients' certificates (`identity`): a server cannot put its own in their place.
Clients that lie are found: dealers commit themselves to every share (`shamir`), a holder that cannot use one proves it
(`sealing`), and the server goes on with the good ones while there are enough. No IO: begin at `client` and `server`.
"""

from espalier.secure.client import Client
from espalier.secure.graph import degree, ring
from espalier.secure.server import Server

__all__ = ["Client", "Server", "degree", "ring"]
