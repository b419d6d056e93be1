"""Run a sampler child that records every answer of the driver, or that makes the survey of a host, each call once."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import pynvml

from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import DaemonRequests, SendMessages, run
from gpumon.collectors.nvml.gpu_list import DriverList
from gpumon.collectors.nvml.library import Library, NvmlError
from gpumon.collectors.nvml.poll import start
from gpumon.collectors.sampler.__main__ import Sampler, failure_status
from gpumon.collectors.sampler.node_reader import HostContext, NvidiaBus, await_surroundings, excluded_gpus
from gpumon.model.call_progress import Writer
from gpumon_sim.capture import BUS, UUIDS
from gpumon_sim.recording.call_recorder import CallLog, CallRecorder
from gpumon_sim.recording.orders import RecordingOrders
from gpumon_sim.recording.survey import survey


def record(orders: RecordingOrders, send: SendMessages, requests: DaemonRequests) -> int:
    around = _with_log(await_surroundings(orders, send), CallLog(orders.record))
    if orders.survey:
        return _survey(orders, send, around)
    return Sampler(orders, send, around, requests).run()


def _with_log(around: HostContext, calls: CallLog) -> HostContext:
    """Make pynvml log every answer of the driver.

    Return a host context whose functions also log the GPUs and UUIDs that they return.
    """
    library = pynvml.nvmlLib or _driver()
    if library is not None:
        pynvml.nvmlLib = CallRecorder(library, calls)

    def logged(what: str, list_devices: NvidiaBus) -> Callable[[], Mapping[str, str]]:
        def list_and_log() -> Mapping[str, str]:
            devices = dict(list_devices())
            calls.write(what, boot_clock(), devices)
            return devices

        return list_and_log

    return replace(around, bus=logged(BUS, around.bus), uuids=logged(UUIDS, around.uuids))


def _driver() -> ctypes.CDLL | None:
    """Return the NVML library, loaded as pynvml loads it; None if it is missing, which pynvml reports later."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def _survey(orders: RecordingOrders, send: SendMessages, around: HostContext) -> int:
    library = Library(Writer(orders.page))
    try:
        status = start(library)
        send(status)
        gpus = around.bus() or DriverList(library, ()).read()
        excluded = excluded_gpus(orders.exclude, gpus, around.uuids()).values()
        bound = sorted(bus_id for bus_id, driver in gpus.items() if driver == "nvidia" and bus_id not in excluded)
        survey(library, pynvml.nvmlLib, status.driver or "", bound)
    except NvmlError as error:
        send(failure_status(error))
    return 0


if __name__ == "__main__":
    # Skip the interpreter's clean-up: a driver's destructors may not return.
    os._exit(run(RecordingOrders, record))
