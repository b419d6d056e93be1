"""Main functions of the sampler and the host child, without the parts that need a separate process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.truth.host import Main, VirtualProcess
from gpumon import __version__
from gpumon.collectors.host.__main__ import HostChild, run, trees
from gpumon.collectors.sampler.__main__ import Sampler
from gpumon.collectors.sampler.node_reader import await_surroundings
from gpumon.model import frame
from gpumon.model.orders import HostOrders, SamplerOrders
from gpumon.model.snapshot import ChildMessage, Hello


def sampler(process: VirtualProcess) -> int:
    orders = SamplerOrders.decode(process.orders)
    orders = replace(orders, page=process.page)

    encoder = frame.Encoder()

    def send(*messages: ChildMessage) -> None:
        process.write(b"".join(map(encoder.encode, messages)))

    _send_hello(process)
    return Sampler(orders, send, await_surroundings(orders, send), process.requests).run()


def host(process: VirtualProcess) -> int:
    orders = replace(HostOrders.decode(process.orders), page=process.page)
    _send_hello(process)
    run(HostChild(orders, trees(orders)), lambda message: process.write(frame.encode(message)))
    return 0


def _send_hello(process: VirtualProcess) -> None:
    process.write(frame.encode(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid())))


MAINS: Mapping[str, Main] = {"gpumon.collectors.sampler": sampler, "gpumon.collectors.host": host}
