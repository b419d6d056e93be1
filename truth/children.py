"""What the agent's children do, as their own main functions have it, but for what ties them to a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gpumon import __version__
from gpumon.links.__main__ import Links, run, trees
from gpumon.sampler.__main__ import Sampler
from gpumon.sampler.node import await_surroundings
from gpumon.snapshot import frame
from gpumon.snapshot.orders import LinkOrders, Orders
from gpumon.snapshot.snapshot import Hello, Message
from truth.host import Main, Process


def sampler(process: Process) -> int:
    orders = Orders.decode(process.orders)
    orders = replace(orders, page=process.page)

    def say(*messages: Message) -> None:
        process.write(b"".join(map(frame.encode, messages)))

    _greet(process)
    return Sampler(orders, say, await_surroundings(orders, say), process.told).run()


def links(process: Process) -> int:
    orders = replace(LinkOrders.decode(process.orders), page=process.page)
    _greet(process)
    run(Links(orders, trees(orders)), lambda message: process.write(frame.encode(message)))
    return 0


def _greet(process: Process) -> None:
    process.write(frame.encode(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid())))


MAINS: Mapping[str, Main] = {"gpumon.sampler": sampler, "gpumon.links": links}
