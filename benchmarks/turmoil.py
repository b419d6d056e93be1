"""TABLE: faults that a soak causes on a simulated node, and their effects. One row per fault of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from gpumon_sim.sim_faults import FAULTS

GETTERS = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues")
"""Called in every poll of every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A key of the scenario with a random valid value."""

    key: str
    value: Callable[[Random], Any]
    node: bool = False
    """True if the key is at the top of the scenario and affects every GPU."""
    hides: bool = False
    """True if the GPU cannot be read while the fault is active: its readings must disappear."""
    disturbs: float = 0.0
    """Seconds for which other GPUs may have no readings, because the sampler has to be replaced."""


def _any_of(*values: Any) -> Callable[[Random], Any]:
    return lambda chance: chance.choice(values)


def _on(_: Random) -> bool:
    return True


def _garbage(chance: Random) -> dict[str, float]:
    names = ("utilization", "temperature", "power", "energy", "memory_used", "sm_clock", "pcie_replays", "margin")
    return {name: chance.choice((300, 65535, -5, 4294967295, 1e30)) for name in chance.sample(names, 3)}


def _readings(chance: Random) -> dict[str, float]:
    return {
        "temperature": chance.randint(30, 95),
        "power": chance.randint(80, 700),
        "utilization": chance.randint(0, 100),
    }


def _links(chance: Random) -> dict[int, dict[str, Any]]:
    return {
        link: chance.choice(({"state": "down"}, {"state": "sleep"}, {"crc": 12, "replay": 3}))
        for link in chance.sample(range(18), 3)
    }


REPLACED, CRASHED = 20.0, 60.0
"""Seconds without readings of other GPUs while a sampler is replaced, or restarted with back-off after crashes."""

TROUBLES: tuple[Trouble, ...] = (
    Trouble(key="lost", value=_on, hides=True),
    Trouble(key="absent", value=_on, hides=True),
    Trouble(key="bound", value=_any_of("vfio-pci", "none"), hides=True),
    Trouble(key="hang", value=lambda chance: [chance.choice(GETTERS)], hides=True, disturbs=REPLACED),
    Trouble(key="hang_forever", value=lambda chance: [chance.choice(GETTERS)], hides=True, disturbs=REPLACED),
    Trouble(key="crash", value=lambda chance: [chance.choice(GETTERS)], hides=True, disturbs=CRASHED),
    Trouble(key="fail", value=lambda chance: {"nvmlDeviceGet*": chance.choice((4, 15, 16, 999))}, hides=True),
    Trouble(key="fail", value=lambda chance: {chance.choice(GETTERS): chance.choice((3, 4, 27, 999, 4711))}),
    Trouble(key="delay", value=lambda chance: {"nvmlDeviceGet*": chance.choice((0.005, 0.05, 0.2))}),
    Trouble(key="uncounted", value=_on),
    Trouble(key="lookup", value=_any_of("NO_PERMISSION", "UNKNOWN", "IRQ_ISSUE")),
    Trouble(key="reset_required", value=_on),
    Trouble(key="latched_utilization", value=_on),
    Trouble(key="power_brake", value=_any_of({"seconds": 0.005, "every": 60}, {"seconds": 30, "every": 60})),
    Trouble(key="mig", value=_any_of(["3g.40gb", "3g.40gb"], ["1g.10gb"] * 3, [])),
    Trouble(key="set", value=_readings),
    Trouble(key="garbage", value=_garbage),
    Trouble(key="gpm", value=_any_of({"*": 0}, {"sm_util": 300}, {"any_tensor_util": None})),
    Trouble(key="ecc", value=_any_of({"uncorrected_dram": 1}, {"corrected_dram": 40, "corrected_sram": 2})),
    Trouble(key="remap", value=_any_of({"uncorrectable": 1, "pending": 1}, {"failed": 1})),
    Trouble(key="repair", value=_any_of({"channel": 1}, {"tpc": 1})),
    Trouble(key="pcie_errors", value=_any_of({"correctable": 5}, {"fatal": 1})),
    Trouble(key="nvlinks", value=_links),
    Trouble(key="peer_access", value=_any_of({0: {"nvlink": "not_supported"}}, {5: {"read": "disabled_by_regkey"}})),
    Trouble(key="fabric", value=_any_of({"state": 2}, {"status": 999})),
    Trouble(key="fail_fields", value=_any_of({"TOTAL_ENERGY_CONSUMPTION": 999}, {"NVLINK_LINK_COUNT": 999})),
    Trouble(key="field_types", value=_any_of({"MEMORY_TEMP": "double"}, {"POWER_AVERAGE": "unsigned_short"})),
    Trouble(key="driver", value=_any_of("not_loaded"), node=True, hides=True, disturbs=CRASHED),
    Trouble(key="driver", value=_any_of("absent", "mismatch"), node=True, disturbs=CRASHED),
    Trouble(key="hang", value=_any_of(["nvmlDeviceGetCount*"]), node=True, hides=True, disturbs=CRASHED),
    Trouble(key="crash", value=_any_of(["nvmlDeviceGetCount*"]), node=True, hides=True, disturbs=CRASHED),
    Trouble(key="fail", value=_any_of({"nvmlEventSetWait*": 999}, {"nvmlDeviceGetCount*": 999}), node=True),
    Trouble(key="delay", value=_any_of({"nvmlDevice*": 0.01}), node=True),
    Trouble(key="root", value=lambda _: False, node=True),
    Trouble(key="ports", value=_any_of({"mlx5_2": {"state": "down"}}, {"mlx5_5": {"hang": True}}), node=True),
    Trouble(key="nics", value=_any_of(["azure_vf"], ["limited_pf", "bond"]), node=True),
    Trouble(key="stuck_processes", value=_any_of([{"gpus": [3]}]), node=True),
    Trouble(key="services", value=_any_of({"fabric_manager": "stopped"}), node=True),
)

NOT_HERE: Mapping[str, str] = {
    "xids": "is sent by Stage.send_xid: the list only grows",
    "c2c_links": "an h100x8 has none",
    "imex_crashed": "an h100x8 has no IMEX domain",
    "seed": "is another node",
    "driver_version": "is read once at the start of a process",
    "place": "is read once at the start of a process",
    **dict.fromkeys(("idle", "busy", "jobs"), "is load and no fault"),
}
XIDS = (13, 31, 43, 48, 63, 74, 79, 94, 95, 119)


def undecided_faults() -> set[str]:
    """Return faults of the simulation that are not in this table."""
    return FAULTS.keys() - {each.key for each in TROUBLES} - NOT_HERE.keys()
