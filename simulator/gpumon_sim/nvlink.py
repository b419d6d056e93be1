"""Simulates NVML's functions for single NVLinks, and for the chip-to-chip links of Grace hosts."""

from __future__ import annotations

from gpumon_sim.board import PEER_GPU
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import device_function, getter
from gpumon_sim.getters import put_pci
from gpumon_sim.quantities import LINK_DOWN, Link
from gpumon_sim.sim_gpu import SimGpu

_NVSWITCH = 0x22A310DE
_ERROR_COUNTERS = ("replay", "recovery", "crc", "crc")
"""Attributes of Link for NVML's error counters 0 to 3, up to Hopper: replay, recovery, flit CRC, data CRC."""


def _link(device: SimGpu, number: int) -> Link:
    """Return a GPU's NVLink by number. Raise Refusal (NOT_SUPPORTED) if the GPU has no link with this number.

    Real drivers were observed to return NOT_SUPPORTED, although NVML's header documents another code.
    """
    if number >= len(device.state.links):
        raise Refusal(Code.NOT_SUPPORTED)
    return device.state.links[number]


@getter("nvmlDeviceGetNvLinkState", "I", takes=["u4"])
def state(device: SimGpu, number: int) -> float:
    """Return 1 if the link is up (active or asleep), 0 if it is down."""
    return _link(device, number).state != LINK_DOWN


@getter("nvmlDeviceGetNvLinkVersion", "I", takes=["u4"])
def version(device: SimGpu, number: int) -> float:
    _link(device, number)
    return device.board.link_version


@getter("nvmlDeviceGetNvLinkErrorCounter", "Q", takes=["u4", "u4"])
def error_counter(device: SimGpu, number: int, counter: int) -> float | None:
    link = _link(device, number)
    if counter >= len(_ERROR_COUNTERS) or device.board.nvlink5:
        return None
    count: float = getattr(link, _ERROR_COUNTERS[counter])
    return count


def _peer(device: SimGpu, number: int) -> tuple[int, str]:
    """Return NVML's device type and the PCI address of a link's other end. Raise Refusal for a down or missing link."""
    if _link(device, number).state == LINK_DOWN:
        raise Refusal(Code.NOT_SUPPORTED)
    return device.profile.peer(device.identity.number, number)


getter("nvmlDeviceGetNvLinkRemoteDeviceType", "i", takes=["u4"])(lambda device, number: _peer(device, number)[0])


@device_function("nvmlDeviceGetNvLinkRemotePciInfo_v2", "u4", "struct 68 0")
def peer_address(device: SimGpu, number: int, out: int | None) -> None:
    kind, bus_id = _peer(device, number)
    put_pci(out, bus_id, device.board.pci_device if kind == PEER_GPU else _NVSWITCH, 0)


@getter("nvmlDeviceGetC2cModeInfoV", "I", since=(550,))
def c2c_mode(device: SimGpu) -> float | None:
    """Return 1 if the GPU has chip-to-chip links, otherwise 0; None on products before Hopper."""
    return bool(device.state.c2c_links) if device.board.gpm else None
