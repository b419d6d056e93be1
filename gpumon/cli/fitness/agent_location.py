"""Where the agent is asked, and where its store is: as given, else as the agent has left word, else as configured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpumon.cli.fitness.node_health import Unknowable
from gpumon.config import agent_file, places
from gpumon.config.agent_file import ANYWHERE

LISTEN, STORE, CONFIG = "--web.listen-address", "--store.path", "--config.file"
VARIABLES = {LISTEN: "GPUMON_WEB__LISTEN_ADDRESS", STORE: "GPUMON_STORE__PATH", CONFIG: "GPUMON_CONFIG__FILE"}
"""Flags and what says the same in the environment. A test holds them against the table of settings."""
RUNTIME = "/run/gpumon"
"""Of the systemd unit."""


class Place(NamedTuple):
    """Where to ask."""

    host: str
    port: int
    store: str | None
    """None: nothing says which store belongs to this address."""


def find(
    flags: Mapping[str, str | None], environ: Mapping[str, str], configured: Callable[[], tuple[tuple[str, int], str]]
) -> Place:
    """`configured` reads the whole configuration for address and store, which takes longer than all the rest."""
    given = {flag: flags.get(flag) or environ.get(variable) for flag, variable in VARIABLES.items()}
    address = _address(given[LISTEN])
    store = os.path.expanduser(named) if (named := given[STORE]) else None
    if address and store:
        return Place(*address, store)
    left = None if given[CONFIG] else _left(store, environ)
    if address:
        same = left is not None and left.port == address[1]
        return Place(*address, left.store if left and same else None)
    if left is not None:
        return Place(left.host, left.port, left.store)
    (host, port), configured_store = configured()
    return Place(ANYWHERE.get(host, host), port, store or configured_store)


def _left(store: str | None, environ: Mapping[str, str]) -> agent_file.Beacon | None:
    """What an agent has left: that of this store, else that of systemd's unit, else one of this user's own."""
    if store is not None:
        return agent_file.read(agent_file.beside(store))
    own = f"{places.state_directory(environ, root=os.geteuid() == 0)}/{places.STORE}"
    runtime = places.given_runtime_directory(environ) or RUNTIME
    return agent_file.read(f"{runtime}/{agent_file.NAME}") or agent_file.read(agent_file.beside(own))


def _address(text: str | None) -> tuple[str, int] | None:
    """None for port 0 as well: then only the agent knows which it got."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise Unknowable(f"{LISTEN} {text!r} should be HOST:PORT, [IPV6]:PORT or :PORT.")
    host = host.strip("[]")
    return (ANYWHERE.get(host, host), int(port)) if int(port) else None
