"""Limits the number of exported series: keeps the largest values, or the first MIG instances and links. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import TypeVar

from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.reading import MAX_SERIES, Page, Table, count_series

_Table = TypeVar("_Table", bound=Table)


def limit_node(node: Node, dropped: Mapping[str, float]) -> Node:
    """Return the metrics of the node without the series beyond MAX_SERIES. `dropped`: those of the GPUs now.

    `dropped_series_total` is, by reason, the highest number of series that were dropped at one time.
    """
    cut, before = Counter(dropped), node.dropped_series_total or {}
    node = replace(
        node,
        nvswitch_errors_total=_largest_values(node.nvswitch_errors_total, "sxids", cut),
        poll_errors_total=_largest_values(node.poll_errors_total, "poll_errors", cut),
    )
    return replace(
        node,
        dropped_series_total={reason: max(float(cut[reason]), before.get(reason, 0.0)) for reason in MAX_SERIES},
    )


def limit_gpu(state: GpuState, cut: Counter[str]) -> GpuState:
    """Return the GPU without the series beyond MAX_SERIES. Count the dropped series in `cut`, by reason."""
    gpu = state.gpu
    if gpu.process_memory_bytes is not None and gpu.processes is not None:
        cut["processes"] += max(0, int(gpu.processes) - len(gpu.process_memory_bytes))  # the sampler sends the largest
    if len(gpu.xid_errors_total or ()) > MAX_SERIES["xids"]:
        largest = _largest_values(gpu.xid_errors_total, "xids", cut) or {}
        last = {xid: at for xid, at in (gpu.xid_last_timestamp_seconds or {}).items() if xid in largest}
        state = replace(state, gpu=replace(gpu, xid_errors_total=largest, xid_last_timestamp_seconds=last or None))
    if len(state.migs) > MAX_SERIES["migs"]:
        _count([mig.mig for mig in state.migs], "migs", cut)
        state = replace(state, migs=state.migs[: MAX_SERIES["migs"]])
    if max(len(state.links), len(state.peers), len(state.c2c_links)) > MAX_SERIES["links"]:
        links, peers, c2c_links = _links(state.links, cut), _links(state.peers, cut), _links(state.c2c_links, cut)
        state = replace(state, links=links, peers=peers, c2c_links=c2c_links)
    return state


def _links(links: Mapping[str, _Table], cut: Counter[str]) -> Mapping[str, _Table]:
    _count(list(links.values()), "links", cut)
    return dict(list(links.items())[: MAX_SERIES["links"]])


def _count(tables: Sequence[Table], reason: str, cut: Counter[str]) -> None:
    cut[reason] += sum(count_series(table, page) for table in tables[MAX_SERIES[reason] :] for page in Page)


def _largest_values(values: Mapping[str, float] | None, reason: str, cut: Counter[str]) -> dict[str, float] | None:
    """Return the largest values, at most MAX_SERIES[reason], in their original order. Count the others in `cut`."""
    if values is None or len(values) <= MAX_SERIES[reason]:
        return None if values is None else dict(values)
    cut[reason] += len(values) - MAX_SERIES[reason]
    largest = set(nlargest(MAX_SERIES[reason], values, key=lambda key: values[key]))
    return {key: value for key, value in values.items() if key in largest}
