"""The values of the profiles match published values of real GPUs."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from each_case import each_case
from simulated import answer, simulated_node

MIB = 1 << 20

# utkuozdemir/nvidia_gpu_exporter (MIT), captures of an H100 80GB HBM3 on 590.48.01, idle and under gpu-burn, and
# `nvidia-smi -q` of an H800 on 525.105.17, which still gave the thresholds in degrees.
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "total": 85520809984,
    "reserved": 502267904,
    "bar1": 131072 * MIB,
    "idle clocks": [345, 345, 2619, 765],
    "max clocks": [1980, 1980, 2619, 1545],
    "limits": [200_000, 700_000],
    "pcie": [5, 5, 16, 16],
    "pstate": 0,
    "thresholds": [92, 89, 95, 87],
    "offsets": [-8, -2, 0, 0],
    "links": 18,
    "link speed": 26562,
    "capability": (9, 0),
    "architecture": 9,
    "device": 0x233010DE,
    "idle power": (60_000, 80_000),  # 69.85 W; H800 74.71 W
    "idle temperature": (25, 45),  # 41 C; H800 35 C
    "full power": (600_000, 700_000),  # 631.95 W
    "event mask": 511,
    "spare rows": 2560,
    "mig": [0, 0],
}
# `nvidia-smi -q` of A100-SXM4-80GB on 555.42.02 (its limit was 500 W) and of A100-SXM4-40GB on 535.129.03 (400 W).
A100 = {
    "name": "NVIDIA A100-SXM4-80GB",
    "total": 81920 * MIB,
    "reserved": 763 * MIB,
    "bar1": 131072 * MIB,
    "idle clocks": [210, 210, 1593, 585],
    "max clocks": [1410, 1410, 1593, 1290],
    "limits": [100_000, 400_000],
    "pcie": [4, 4, 16, 16],
    "pstate": 0,
    "thresholds": [92, 89, 95, 85],
    "offsets": None,
    "links": 12,
    "link speed": 25000,
    "capability": (8, 0),
    "architecture": 7,
    "device": 0x20B210DE,
    "idle power": (50_000, 70_000),  # 59.77 W, 60.31 W
    "idle temperature": (20, 35),  # 22 C, 25 C
    "full power": (330_000, 400_000),
    "event mask": 511,
    "spare rows": 640,
    "mig": [0, 0],
}
# `nvidia-smi -q` of a Tesla T4 on 530.30.02.
T4 = {
    "name": "Tesla T4",
    "total": 15360 * MIB,
    "reserved": 393 * MIB,
    "bar1": 256 * MIB,
    "idle clocks": [300, 300, 405, 540],
    "max clocks": [1590, 1590, 5001, 1470],
    "limits": [60_000, 70_000],
    "pcie": [1, 3, 16, 16],
    "pstate": 8,
    "thresholds": [96, 93, None, 85],
    "offsets": None,
    "links": None,
    "link speed": None,
    "capability": (7, 5),
    "architecture": 6,
    "device": 0x1EB810DE,
    "idle power": (12_000, 16_000),  # 14.04 W
    "idle temperature": (33, 43),  # 38 C
    "full power": (58_000, 70_000),
    "event mask": 511,
    "spare rows": None,
    "mig": None,
}
# nvidia_gpu_exporter's capture of an H200 on 610.43.02, idle.
H200 = {
    "name": "NVIDIA H200",
    "total": 143771 * MIB,
    "reserved": 623 * MIB,
    "bar1": 262144 * MIB,
    "idle clocks": [345, 345, 3201, 765],
    "max clocks": [1980, 1980, 3201, 1545],
    "limits": [200_000, 700_000],
    "pcie": [5, 5, 16, 16],
    "pstate": 0,
    "thresholds": [95, 89, 95, 87],  # from the offsets, and the 87 degrees at zero margin
    "offsets": [-8, -2, 0, 0],
    "links": 18,
    "link speed": 26562,
    "capability": (9, 0),
    "architecture": 9,
    "device": 0x233510DE,
    "idle power": (75_000, 90_000),  # 83.32 W
    "idle temperature": (30, 45),  # 38 C
    "full power": (600_000, 700_000),
    "event mask": 511,
    "spare rows": 3072,
    "mig": [0, 0],
}
# The captures of NVIDIA/k8s-test-infra (Apache-2.0): 8 B200 on 580.105.08, 4 GB200 on 580.173.02, idle.
B200 = {
    "name": "NVIDIA B200",
    "total": 183359 * MIB,
    "reserved": 728 * MIB,
    "bar1": 262144 * MIB,
    "idle clocks": [120, 120, 3996, 600],
    "max clocks": [1965, 1965, 3996, 1965],
    "limits": [200_000, 1_000_000],
    "pcie": [5, 5, 16, 16],
    "pstate": 0,
    "thresholds": [None] * 4,
    "offsets": [-5, -3, 0, 0],
    "links": 18,
    "link speed": 53125,
    "capability": (10, 0),
    "architecture": 10,
    "device": 0x290110DE,
    "idle power": (185_000, 205_000),  # 195.68 W
    "idle temperature": (32, 45),  # 39 C
    "full power": (850_000, 1_000_000),
    "event mask": 511,
    "spare rows": 3840,
    "mig": [0, 0],
}
GB200 = B200 | {
    "name": "NVIDIA GB200",
    "total": 189471 * MIB,
    "reserved": 742 * MIB,
    "max clocks": [2062, 2062, 3996, 1890],
    "limits": [200_000, 1_200_000],
    "offsets": [-5, -2, 0, 0],
    "device": 0x294110DE,
    "idle power": (155_000, 175_000),  # 165.93 W
    "idle temperature": (22, 33),  # 27 C
    "full power": (1_000_000, 1_200_000),
    "spare rows": 3968,
}
# nvidia_gpu_exporter's capture of an L40S on 595.80 at work, and that of NVIDIA/k8s-test-infra on 595.91.07, idle.
L40S = {
    "name": "NVIDIA L40S",
    "total": 46068 * MIB,
    "reserved": 609 * MIB,
    "bar1": 65536 * MIB,
    "idle clocks": [2040, 2040, 9001, 1725],
    "max clocks": [2520, 2520, 9001, 1965],
    "limits": [100_000, 350_000],
    "pcie": [4, 4, 16, 16],
    "pstate": 0,
    "thresholds": [93, 90, None, 88],  # from the offsets, and the 88 degrees at zero margin
    "offsets": [-5, -2, None, 0],
    "links": None,
    "link speed": None,
    "capability": (8, 9),
    "architecture": 8,
    "device": 0x26B910DE,
    "idle power": (60_000, 70_000),  # 65.64 W
    "idle temperature": (24, 35),  # 29 C
    "full power": (300_000, 350_000),
    "event mask": 511,
    "spare rows": 192,
    "mig": None,
}


def numbers(handle: Any, *fields: Any) -> Any:
    """Return the signed value or None of each field, or of the only field."""
    batch = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
    numbers = [None if f.nvmlReturn else f.value.siVal for f in batch]
    return numbers if len(numbers) > 1 else numbers[0]


def value_if_supported(call: Any, *arguments: Any) -> Any:
    return None if answer(call, *arguments) == pynvml.NVML_ERROR_NOT_SUPPORTED else call(*arguments)


@each_case(
    ("profile", "published"),
    [
        ("h100x8", H100),
        ("h200x8", H200),
        ("b200x8", B200),
        ("gb200x4", GB200),
        ("a100x8", A100),
        ("l40sx4", L40S),
        ("t4x1", T4),
    ],
)
def test_values_match_the_published_values(profile: str, published: dict[str, Any]) -> None:
    """Fixed values equal those of real GPUs, and changing values are in a range around them."""
    with simulated_node(profile, now=10.0) as simulation:
        handle = simulation.handles()[0]
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        offsets = numbers(handle, 193, 194, 195, 196)
        read = {
            "name": pynvml.nvmlDeviceGetName(handle),
            "total": memory.total,
            "reserved": memory.reserved,
            "bar1": pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total,
            "idle clocks": [pynvml.nvmlDeviceGetClockInfo(handle, n) for n in range(4)],
            "max clocks": [pynvml.nvmlDeviceGetMaxClockInfo(handle, n) for n in range(4)],
            "limits": numbers(handle, 187, 188),
            "pcie": [
                pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
                pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
                pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
                pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
            ],
            "pstate": pynvml.nvmlDeviceGetPerformanceState(handle),
            "thresholds": [value_if_supported(pynvml.nvmlDeviceGetTemperatureThreshold, handle, n) for n in range(4)],
            "offsets": None if offsets[0] is None else offsets,
            "spare rows": getattr(value_if_supported(pynvml.nvmlDeviceGetRowRemapperHistogram, handle), "max", None),
            "mig": value_if_supported(pynvml.nvmlDeviceGetMigMode, handle),
            "links": numbers(handle, 91),
            "link speed": numbers(handle, (164, 0)),
            "capability": pynvml.nvmlDeviceGetCudaComputeCapability(handle),
            "architecture": pynvml.nvmlDeviceGetArchitecture(handle),
            "device": pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId,
            "event mask": pynvml.nvmlDeviceGetSupportedClocksEventReasons(handle),
        }
        moving = {"idle power": pynvml.nvmlDeviceGetPowerUsage(handle)}
        moving["idle temperature"] = pynvml.nvmlDeviceGetTemperature(handle, 0)
        simulation.now = 250.0
        moving["full power"] = pynvml.nvmlDeviceGetPowerUsage(handle)
    assert read == {key: value for key, value in published.items() if key not in moving}
    for key, value in moving.items():
        low, high = published[key]
        assert low <= value <= high, key


def test_memory_and_module_power_match_the_published_values() -> None:
    """Idle power in watts: H200 42.08, B200 22.33, GB200 30.26 and 467.17 for the module; no module elsewhere."""
    read = {}
    for profile in ("h200x8", "b200x8", "gb200x4", "l40sx4"):
        with simulated_node(profile, now=10.0) as simulation:
            read[profile] = numbers(simulation.handles()[0], (185, 2), (185, 1))
    assert read == {
        "h200x8": [42_000, None],
        "b200x8": [22_000, None],
        "gb200x4": [30_000, pytest.approx(467_000, abs=8_000)],
        "l40sx4": [None, None],
    }


def test_the_temperature_limit_matches_the_published_value() -> None:
    """Temperature and margin add up to the limit: H200 38 + 49, B200 39 + 49, GB200 27 + 60, L40S 29 + 59."""
    sums = {}
    for profile in ("h200x8", "b200x8", "gb200x4", "l40sx4"):
        with simulated_node(profile, now=10.0) as simulation:
            handle = simulation.handles()[0]
            margin = pynvml.nvmlDeviceGetMarginTemperature(handle)
            sums[profile] = pynvml.nvmlDeviceGetTemperature(handle, 0) + margin
    assert sums == {
        profile: pytest.approx(limit, abs=1)
        for profile, limit in (("h200x8", 87), ("b200x8", 88), ("gb200x4", 87), ("l40sx4", 88))
    }
