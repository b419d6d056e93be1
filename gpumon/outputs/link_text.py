"""Sentences about NVLinks, the NVLink fabric, services and InfiniBand ports, from the responses of the API."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.model.fabric import COMPLETED, STATES
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import metric_type, rows
from gpumon.outputs.formatting import count
from gpumon.outputs.responses.base import Document

_ERROR_COUNTERS = {
    name: name.removesuffix("_total").replace("_", " ")
    for name, row in rows(Nvlink).items()
    if metric_type(name) == "counter" and len(row.labels) == 1
}
"""For each field of an NVLink's response that counts by one label: what it counts, as a noun such as `errors`."""


def link_state(link: Document) -> str:
    """Return the state of an NVLink from its response: up, down or unknown."""
    return {1: "up", 0: "down"}.get(link["up"], "unknown")


def link_errors(link: Document) -> list[str]:
    """Return a list with a phrase for each error count of an NVLink that is not 0, such as `12 replay errors`."""
    return [
        f"{count(number)} {kind.replace('_', ' ')} {noun}"
        for name, noun in _ERROR_COUNTERS.items()
        for kind, number in (link[name] or {}).items()
        if number
    ]


def nvlink_sentences(document: Document) -> list[str]:
    """Return a list of sentences: how many NVLinks are up, then one for each GPU with links down or with errors.

    Return an empty list if there are no NVLinks.
    """
    links = document["links"]
    if not links:
        return []
    reported = [link for link in links if link["up"] is not None]
    up = sum(link["up"] == 1 for link in reported)
    unknown = f", {len(links) - len(reported)} unknown" if len(reported) < len(links) else ""
    by_gpu: dict[int, list[Document]] = {}
    for link in links:
        by_gpu.setdefault(link["gpu"], []).append(link)
    faults = ((gpu, "; ".join(_link_faults(own))) for gpu, own in by_gpu.items())
    summary = f"{up} of {len(reported)} up{unknown}" if reported else f"{len(links)}, state unknown"
    return [f"NVLinks: {summary}.", *(f"GPU {gpu}: {text}." for gpu, text in faults if text)]


def _link_faults(links: list[Document]) -> Iterator[str]:
    down = [str(link["link"]) for link in links if link["up"] == 0]
    if down:
        yield f"NVLink{'s' if len(down) > 1 else ''} {', '.join(down)} down"
    for link in links:
        if errors := link_errors(link):
            yield f"NVLink {link['link']} has {', '.join(errors)}"


def fabric_fault(gpu: Document) -> str:
    """Return a text on what is wrong with the NVLink fabric or with a GPU's registration in it.

    Return an empty string if nothing is wrong, or if NVML reports nothing about a fabric.
    """
    fabric: Document = gpu["fabric"] or {}
    state, status = fabric.get("state"), fabric.get("status")
    if state in STATES:
        return f"the fabric registration {STATES[state]}"
    if state == COMPLETED and status:
        return f"the fabric registration failed with NVML error {count(status)}"
    unhealthy = [check.replace("_", " ") for check, value in (fabric.get("health") or {}).items() if value]
    return f"fabric unhealthy: {', '.join(unhealthy)}" if unhealthy else ""


SERVICES = {"fabric_manager_up": "NVIDIA fabric manager", "imex_up": "NVIDIA IMEX daemon"}


def stopped_services(node: Document) -> list[str]:
    """Return a list with one sentence for each NVIDIA service of the host that is installed but not running."""
    return [f"The {name} is not running." for row, name in SERVICES.items() if node[row] == 0]


def port_sentences(document: Document) -> list[str]:
    """Return a list of sentences: how many InfiniBand and RoCE ports are up, then one for each port that is down.

    Return an empty list if there are no ports.
    """
    ports = document["ports"]
    if not ports:
        return []
    down = [port for port in ports if port["port_up"] == 0]
    return [
        f"InfiniBand and RoCE: {sum(port['port_up'] == 1 for port in ports)} of {len(ports)} ports up.",
        *(f"{port['device']}/{port['port']} ({port['link_layer']}) is down." for port in down),
    ]
