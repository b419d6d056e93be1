"""What other hosts of the same hardware come to, as the Prometheus that scrapes them all tells. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumon.probe.core.result import Measurement

LEAST_HOSTS = 3
"""Of fewer the median says too little."""

_BUSBW = "gpumon_probe_allreduce_busbw_bytes_per_second"
_RANKS = "gpumon_probe_allreduce_ranks"
_INFO = "gpumon_gpu_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a host must have to be compared with this one."""

    model: str
    gpus: int
    uuid: str
    """Of one GPU of this host, which is left out: whatever Prometheus calls it, that is its own."""

    @property
    def query(self) -> str:
        """PromQL: the median of the other hosts' last runs on all of their GPUs, where there are enough of them."""
        boards = f"group by (instance, uuid) ({_INFO}{{name={json.dumps(self.model)}}})"  # however many jobs scrape it
        alike = f"count by (instance) ({boards}) == {self.gpus}"
        hosts = (
            f'max by (instance, algorithm, bytes) ({_BUSBW}{{backend="nccl"}}) and on (instance) ({alike})'
            f' and on (instance) ({_RANKS}{{backend="nccl"}} == {self.gpus})'
            f" unless on (instance) {_INFO}{{uuid={json.dumps(self.uuid)}}}"
        )
        by = "by (algorithm, bytes)"
        enough = f"count {by} ({hosts}) >= {LEAST_HOSTS}"
        return f"quantile {by} (0.5, {hosts}) and on (algorithm, bytes) ({enough})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """The medians, in bytes a second, by algorithm and size."""

    hardware: Hardware | None = None
    """Of which they are; None: nobody has been asked, or has answered."""
    busbw: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def figure(self, model: str, ranks: int, measurement: Measurement) -> float | None:
        """Of an all-reduce on all GPUs of a host. None where nobody can tell."""
        known = self.hardware
        if known is None or (known.model, known.gpus) != (model, ranks):
            return None
        if (measurement.collective, measurement.dtype) != ("all_reduce", "float32"):
            return None
        return self.busbw.get((measurement.algorithm, measurement.bytes))


def read(hardware: Hardware, body: bytes) -> FleetFigures:
    """The answer of Prometheus to `hardware.query`. Raises ValueError when it is no such answer."""
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise ValueError(f"{answer.get('errorType', 'error')}: {answer.get('error', 'no reason told')}")
        found = dict(_entry(one) for one in answer["data"]["result"])
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError("it is not the answer of a Prometheus") from error
    return FleetFigures(hardware=hardware, busbw={key: rate for key, rate in found.items() if 0 < rate < math.inf})


def _entry(series: Mapping[str, Any]) -> tuple[tuple[str, int], float]:
    labels = series["metric"]
    return (str(labels["algorithm"]), int(labels["bytes"])), float(series["value"][1])
