"""What connects the GPUs, in words: NVLinks, the fabric, InfiniBand. From the documents, for page and terminal."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.model.fabric import COMPLETED, STATES
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import metric_type, rows
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import count

_COUNTERS = {
    name: name.removesuffix("_total").replace("_", " ")
    for name, row in rows(Nvlink).items()
    if metric_type(name) == "counter" and len(row.labels) == 1
}
"""What is counted of a link by kind, with its noun."""


def link_state(link: Document) -> str:
    """up, down or not known."""
    return {1: "up", 0: "down"}.get(link["up"], "not known")


def counted(link: Document) -> list[str]:
    """What a link has counted: 12 replay errors, 1 failed recoveries."""
    return [
        f"{count(number)} {kind.replace('_', ' ')} {noun}"
        for name, noun in _COUNTERS.items()
        for kind, number in (link[name] or {}).items()
        if number
    ]


def nvlinks(document: Document) -> list[str]:
    """How many NVLinks are up in a sentence, then one for each GPU of which there is more to say."""
    links = document["links"]
    known = [link for link in links if link["up"] is not None]
    if not links:
        return []
    up = sum(link["up"] == 1 for link in known)
    unknown = f", {len(links) - len(known)} not known" if len(known) < len(links) else ""
    by_gpu: dict[int, list[Document]] = {}
    for link in links:
        by_gpu.setdefault(link["gpu"], []).append(link)
    details = ((gpu, "; ".join(_troubles(own))) for gpu, own in by_gpu.items())
    words = f"{up} of {len(known)} up{unknown}" if known else f"{len(links)}, whose state is not known"
    return [f"NVLinks: {words}.", *(f"GPU {gpu}: {words}." for gpu, words in details if words)]


def _troubles(links: list[Document]) -> Iterator[str]:
    down = [str(link["link"]) for link in links if link["up"] == 0]
    if down:
        yield f"NVLink{'s' if len(down) > 1 else ''} {', '.join(down)} down"
    erring = {link["link"]: counted(link) for link in links}
    for number, words in erring.items():
        if words:
            yield f"NVLink {number} has counted {', '.join(words)}"


def fabric_trouble(gpu: Document) -> str:
    """What is wrong with its place in the fabric; empty when nothing is, or nothing is known."""
    fabric: Document = gpu["fabric"] or {}
    state, status = fabric.get("state"), fabric.get("status")
    if state in STATES:
        return f"the fabric registration {STATES[state]}"
    if state == COMPLETED and status:
        return f"the fabric registration failed with NVML's code {count(status)}"
    bad = [check.replace("_", " ") for check, unhealthy in (fabric.get("health") or {}).items() if unhealthy]
    return f"fabric unhealthy: {', '.join(bad)}" if bad else ""


SERVICES = {"fabric_manager_up": "NVIDIA fabric manager", "imex_up": "NVIDIA IMEX daemon"}


def services(node: Document) -> list[str]:
    """A sentence for each service that is installed and does not run."""
    return [f"The {name} does not run." for row, name in SERVICES.items() if node[row] == 0]


def ports(document: Document) -> list[str]:
    """How many InfiniBand and RoCE ports are up in a sentence, then one for each that is not."""
    there = document["ports"]
    if not there:
        return []
    down = [one for one in there if one["port_up"] == 0]
    return [
        f"InfiniBand and RoCE: {sum(one['port_up'] == 1 for one in there)} of {len(there)} ports up.",
        *(f"{one['device']}/{one['port']} ({one['link_layer']}) is down." for one in down),
    ]
