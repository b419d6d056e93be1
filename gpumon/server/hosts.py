"""Host names that the Host header of a request may have. Other names are refused, to prevent DNS rebinding."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

ANY = "*"
LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost")


def own_names(listen_host: str, etc: Path = Path("/etc")) -> frozenset[str]:
    """Return localhost, the listen address, and the short and fully qualified names of this host, in lower case.

    Fully qualified names come from resolv.conf and hosts in `etc`. DNS is not queried, because that could delay the
    start.
    """
    name = socket.gethostname()
    short = name.partition(".")[0]
    long = {f"{short}.{domain}" for domain in _search_domains(etc / "resolv.conf")}
    names = {*LOCAL, listen_host, name, short, *long, *_aliases(etc / "hosts", {name, short})}
    return frozenset(item.lower().removesuffix(".") for item in names if item)


def is_allowed(header: str, names: frozenset[str]) -> bool:
    """Return True if a Host header has one of these names or an IP address, or if `names` contains "*".

    An IP address is safe, because DNS rebinding needs a name.
    """
    host = host_of(header)
    return ANY in names or host in names or _is_address(host)


def is_loopback(listen_host: str) -> bool:
    """Return True if only programs on this host can connect to this listen address."""
    return listen_host == "localhost" or (_is_address(listen_host) and ipaddress.ip_address(listen_host).is_loopback)


def host_of(header: str) -> str:
    """Return the host name of a Host header in lower case, without port, brackets and final dot."""
    bracketed, closing, _ = header.partition("]")
    host = bracketed.removeprefix("[") if closing else header.partition(":")[0]
    return host.lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _search_domains(resolv_conf: Path) -> set[str]:
    lines = (line.split() for line in _lines(resolv_conf))
    return {domain for words in lines if words[:1] in (["search"], ["domain"]) for domain in words[1:] if domain != "."}


def _aliases(hosts: Path, names: set[str]) -> set[str]:
    """Return all names on those lines of a hosts file that contain one of these names."""
    lines = (set(line.partition("#")[0].split()[1:]) for line in _lines(hosts))
    return {alias for aliases in lines if aliases & names for alias in aliases}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
