"""Asks the running agent, within a deadline for all of it. One GET: http.client would cost more than the answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

from gpumon.cli.fitness.node_health import LEVELS, Document, Fault, GpuRecord, Known, Unknowable, maintenance

PATH = "/api/v1/health"
SECONDS = 2.0
"""For all of it: a prolog must not wait for a sick agent."""
STALE_SECONDS = 60.0
"""It judges every five."""
MOST_BYTES = 16_000_000
_END_OF_HEAD = b"\r\n\r\n"


def ask(host: str, port: int, seconds: float = SECONDS) -> Known:
    """What the agent at this address knows. Raises Unknowable."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        answer = _exchange(host, port, where, time.monotonic() + seconds)
    except TimeoutError as error:
        raise Unknowable(
            f"the agent at {where} did not answer within {seconds:g} s: it hangs, or the host does. "
            "Look at `systemctl status gpumon`, and restart it."
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unknowable(
            f"no agent answers at {where} ({reason}): start it (systemctl start gpumon), or name its address with "
            "--web.listen-address."
        ) from error
    try:
        return _known(json.loads(_body(answer)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unknowable(
            f"what answers at {where} is no gpumon, or one of another version. After an upgrade restart it; else "
            "`ss -ltnp` names who listens there: name the agent's address with --web.listen-address."
        ) from error


def _exchange(host: str, port: int, where: str, deadline: float) -> bytes:
    request = f"GET {PATH} HTTP/1.0\r\nHost: {where}\r\nUser-Agent: gpumon-check\r\n\r\n"
    address = (host.encode(), port)  # as text it would be looked up in Unicode's tables, which take 5 ms to load
    with socket.create_connection(address, timeout=_left(deadline)) as connection:  # type: ignore[arg-type]
        connection.sendall(request.encode())
        return b"".join(_chunks(connection, deadline))


def _chunks(connection: socket.socket, deadline: float) -> Iterator[bytes]:
    """Until it is closed, which is how an answer of HTTP/1.0 ends."""
    size = 0
    while size < MOST_BYTES:
        connection.settimeout(_left(deadline))
        chunk = connection.recv(1 << 16)
        if not chunk:
            return
        size += len(chunk)
        yield chunk


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _body(answer: bytes) -> bytes:
    """Raises ValueError for all but a success."""
    head, _, body = answer.partition(_END_OF_HEAD)
    protocol, _, status = head.partition(b" ")
    if not protocol.startswith(b"HTTP/1.") or not status.startswith(b"200"):
        raise ValueError(head[:80])
    return body


def _known(document: Document) -> Known:
    return Known(
        source="agent",
        level=LEVELS[document["level"]],
        faults=tuple(
            Fault(verdict=_checked(one), consequences=tuple(_checked(other) for other in one["consequences"]))
            for one in document["verdicts"]
        ),
        gpus=tuple(_gpu(one) for one in document["gpus"]),
        awaited=document.get("gpus_awaited", 0),
        maintenance=maintenance(planned["until"], planned["reason"]) if (planned := document["maintenance"]) else None,
        trouble=_unjudged(document["judged_age_seconds"]),
    )


def _unjudged(age: float | None) -> str:
    """Why what it says is of earlier, though it answers; empty when it is of now.

    `age`: as the agent counts it, by a clock that nobody sets.
    """
    if age is None:
        return "the agent has just started, and has judged nothing yet."
    if age <= STALE_SECONDS:
        return ""
    return f"the agent answers, and has judged nothing for {age:.0f} s: it is stuck. Restart it."


def _checked(verdict: Document) -> Document:
    """Raises KeyError for what is no verdict."""
    lacking = {"check", "level", "device", "gpu", "reason", "action", "action_words", "since"} - verdict.keys()
    if lacking or verdict["level"] not in LEVELS:
        raise KeyError(*lacking)
    return verdict


def _gpu(one: Document) -> GpuRecord:
    unwatched = "it is released" if one["released"] else f"it does not answer ({one['fault']})" if one["fault"] else ""
    return GpuRecord(
        number=one["gpu"],
        nvml_index=one.get("nvml_index"),  # an older agent does not say
        uuid=one["uuid"],
        bus_id=one["pci_bus_id"],
        migs=tuple(one["migs"]),
        level=LEVELS[one["level"]],
        unwatched=unwatched,
    )
