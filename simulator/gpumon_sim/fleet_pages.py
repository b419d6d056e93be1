"""Makes a page (such as /metrics) for each of many simulated nodes from the page of one agent. Performs no I/O.

The pages differ in uuids, serial numbers and host name.
"""

from __future__ import annotations

import platform
import re
import uuid

_IDENTITY = re.compile(
    rb'((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=serial=")[^"]+|(?<=ostname=")[^"]+)'
)
"""Matches the uuid of a GPU or MIG device, and the value of the label `serial`, `Hostname` or `hostname`."""
_NAMESPACE = uuid.UUID("6c1d3f0e-6f1b-4d55-9a3e-0f1f7a2b9c10")


class NodeIdentities(dict[bytes, bytes]):
    """Maps the uuids, serial numbers and the host name in an agent's page to those of a simulated node.

    `node` is the node's number, `name` its host name. Each uuid or serial number is derived from
    `node` and the one in the agent's page.
    """

    def __init__(self, node: int, name: str) -> None:
        super().__init__({platform.node().encode(): name.encode()})
        self._node = node

    def __missing__(self, name: bytes) -> bytes:
        own = uuid.uuid5(_NAMESPACE, f"{self._node} {name.decode()}")
        kind, dash, _ = name.partition(b"-")
        digits = str(own.int).zfill(len(name))[-len(name) :]
        self[name] = kind + dash + str(own).encode() if dash else digits.encode()
        return self[name]


class AgentPage:
    """A page of an agent, split at its uuids, serial numbers and host name, so that they can be replaced."""

    def __init__(self, page: bytes) -> None:
        self._parts = _IDENTITY.split(page)
        self._names = self._parts[1::2]

    def of_node(self, identities: NodeIdentities) -> bytes:
        """Return the page with the agent's uuids, serial numbers and host name replaced by those of a node."""
        parts = self._parts.copy()
        parts[1::2] = map(identities.__getitem__, self._names)
        return b"".join(parts)
