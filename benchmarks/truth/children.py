"""Main functions of the sampler and the host child, without the parts that need a separate process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from benchmarks.truth.host import Main, VirtualProcess
from gpumon import __version__
from gpumon.collectors.host.__main__ import poll_host
from gpumon.collectors.lifecycle import OrdersT, Work
from gpumon.collectors.sampler.__main__ import poll_node
from gpumon.model import frame
from gpumon.model.orders import HostOrders, SamplerOrders
from gpumon.model.snapshot import Hello


def _run(orders_type: type[OrdersT], work: Work[OrdersT], process: VirtualProcess) -> int:
    """Do what `lifecycle.run` does in a child process."""
    encoder = frame.Encoder()

    def send(*messages: frame.Frame) -> None:
        process.write(b"".join(map(encoder.encode, messages)))

    send(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    return work(replace(orders_type.decode(process.orders), page=process.page), send, process.requests)


MAINS: Mapping[str, Main] = {
    "gpumon.collectors.sampler": partial(_run, SamplerOrders, poll_node),
    "gpumon.collectors.host": partial(_run, HostOrders, poll_host),
}
