"""What each panel of the dashboard of one GPU must show: GPU_VIEWS."""

from __future__ import annotations

from collections.abc import Mapping

from shown import SIZE, WITHIN, Expectation, elsewhere, seconds_ago

USED = 72_603_402_240
"""Bytes that the process on a GPU of an H100 allocates."""
UNITS = ("graphics", "fp16", "fp32", "fp64", "integer")
"""Parts of a GPU by the names in the legend."""
PARTS = ("multiprocessors", "occupancy", "tensor cores", "memory bandwidth")
INSTANCES = ("3g.40gb 1", "3g.40gb 2")
LIMITS = ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
POLICIES = ("thermal", "board_limit", "low_utilization", "reliability")

GPU: Mapping[str, Expectation] = {
    "Verdict?": lambda shown: shown.number == 3,
    "Does it answer?": lambda shown: shown.number == 1,
    "Driver recommends?": lambda shown: shown.number == 0,
    "Processes?": lambda shown: shown.number == 1,
    "Which board is it?": lambda shown: shown.has(name="NVIDIA H100 80GB HBM3", vbios="96.00.A5.00.01"),
    "What is wrong with it?": lambda shown: shown.has(check="nvlink_down", action="reset"),
    "How has this GPU been?": lambda shown: shown.values == {"verdict": 3},
    "Which checks were bad?": lambda shown: shown.values["nvlink_down"] == 3,
    "Why was it not read?": lambda shown: shown.nothing,
    "When did it last log each Xid?": lambda shown: (
        [line["Xid"] for line in shown.lines if line.get("count") == 1] == ["13"]
        and 0 < seconds_ago(shown.line(Xid="13")["last"]) < 2 * WITHIN
    ),
    "Which Xids occurred in this time?": lambda shown: shown.values == {"Xid 13": 1},
    "How busy are its parts?": lambda shown: shown.between(
        *(0.05, 1),
        *("kernels", "multiprocessors", "tensor cores", "memory bandwidth"),
        *("occupancy of multiprocessors", "memory reads and writes"),
    ),
    "How is its memory used?": lambda shown: (
        0.4e9 < shown.values["reserved"] < shown.values["used"] == USED < shown.values["size"] == SIZE
        and shown.values["BAR1 used"] == 1 << 20
        and shown.values["BAR1 size"] == 1 << 37
    ),
    "How fast are its clocks?": lambda shown: (
        1e9 < shown.values["sm"] <= shown.values["maximum sm"] == 1.98e9 and shown.values["memory"] == 2.619e9
    ),
    "How long was each clock limit active?": lambda shown: shown.between(
        *(0, 1.1), *LIMITS, *(f"policy {policy}" for policy in POLICIES)
    ),
    "Which clock limits are active?": lambda shown: set(shown.values) <= {"sw_power_cap"},
    "In which performance state is it?": lambda shown: shown.values == {"state": 0},
    "Which of its units are busy?": lambda shown: (
        shown.between(1e-4, 1, *UNITS) and shown.values["graphics"] > 0.2 and shown.values["fp64"] < 0.01
    ),
    "How busy are its media engines?": lambda shown: shown.between(0, 0, "encoder", "decoder", "jpeg", "ofa"),
    "Which processes use it?": lambda shown: [line["memory used"] for line in shown.lines] == [USED],
    "Which modes are set?": lambda shown: (
        shown.lines == [{"ECC": 1, "ECC pending": 1, "persistence": 1, "compute mode": 0, "MIG": 0, "MIG pending": 0}]
    ),
    "How hot is it?": lambda shown: (
        30 < shown.values["core"] < shown.values["memory"] < shown.values["core slows down at"] == 89
        and shown.values["memory slows down at"] == 95
        and shown.values["core shuts down at"] == 92
    ),
    "How far is it from slowing down?": lambda shown: (
        1 < shown.values["margin"] < 60 and shown.values["hardware slows down below"] == -2
    ),
    "How much power does it draw?": lambda shown: (
        all(60 < shown.values[name] <= 750 for name in ("power", "last second", "now"))
        and shown.values["limit"] == 700
        and 40 < shown.values["memory"] < 100
    ),
    "Which power limits can be set?": lambda shown: (
        shown.lines == [{"requested": 700, "default": 700, "lowest": 200, "highest": 700}]
    ),
    "How fast is its fan?": lambda shown: shown.nothing,
    "How many ECC errors has it counted?": lambda shown: (
        3 < shown.values["corrected dram"] < 2 * WITHIN
        and 3 < shown.values["corrected dram, lifetime"] < 2 * WITHIN
        and shown.values["uncorrected dram"] == shown.values["uncorrected dram, lifetime"] == 0
    ),
    "How many spare rows are left?": lambda shown: (
        shown.values == {"max": 2560} | dict.fromkeys(("high", "partial", "low", "none"), 0)
    ),
    "Are memory rows remapped?": lambda shown: shown.lines == [{"remapped rows": 0, "pending": 0, "failed": 0}],
    "Must the board be replaced?": lambda shown: shown.lines == [{"SRAM threshold exceeded": 0}],
    "How wide is its PCIe link?": lambda shown: (
        shown.values == {"lanes": 8, "possible": 16, "generation": 5, "possible generation": 5}
    ),
    "How much goes over PCIe and NVLink?": lambda shown: (
        1e9 < shown.values["NVLink received"] == shown.values["NVLink sent"] < 450e9
        and 1e8 < shown.values["PCIe sent"] == shown.values["PCIe received"] < 64e9
    ),
    "Did its PCIe link have errors?": lambda shown: shown.between(1, 200, "replay"),
    "Did its NVLinks have errors?": lambda shown: shown.between(1, 500, "link 9 crc"),
    "How many of its links are up?": lambda shown: (
        shown.values == {"NVLinks": 18, "NVLinks expected": 18, "NVLinks up": 17}
    ),
    "When was each link up?": lambda shown: shown.values == {f"NVLink {link}": float(link != 3) for link in range(18)},
    "Were its NVLinks retrained?": elsewhere,
    "How many received bits are wrong?": lambda shown: shown.nothing,
    "How fast are its NVLinks?": lambda shown: shown.values == {"slowest": 26.562e9},
    "Where do its NVLinks go?": lambda shown: (
        len(shown.lines) == 17 and shown.has(link="9", kind="switch", peer="00000000:07:00.0")
    ),
    "Is it in its NVLink fabric?": lambda shown: shown.lines == [{"registration": 3, "code": 0}],
    "Which checks of the fabric were bad?": lambda shown: shown.nothing,
    "Which MIG instances has it?": lambda shown: shown.lines == [{"profile": "MIG is off"}],
    "How busy are its MIG instances?": lambda shown: shown.nothing,
    "Which units of its MIG instances are busy?": lambda shown: shown.nothing,
}
REMAPPED: Mapping[str, Expectation] = {
    "Are memory rows remapped?": lambda shown: shown.lines == [{"remapped rows": 1, "pending": 1, "failed": 1}],
    "Verdict?": lambda shown: shown.number == 3,
}
HOT: Mapping[str, Expectation] = {
    "How fast is its fan?": lambda shown: shown.values == {"fan": 0.7},
    "How long was each clock limit active?": lambda shown: (
        0.8 < shown.values["hw_thermal"] < 1.2
        and 0.8 < shown.values["sw_thermal"] < 1.2
        and shown.values["hw_power_brake"] == 0
        and 0.5 < shown.peaks["policy thermal"] <= 1
    ),
    "How hot is it?": lambda shown: shown.values["core"] == 95,
    "How far is it from slowing down?": lambda shown: shown.values["margin"] == -8,
    "Which clock limits are active?": lambda shown: (
        {"hw_thermal", "hw_slowdown", "sw_thermal"} <= set(shown.values) and set(shown.values.values()) == {1}
    ),
}
DIVIDED: Mapping[str, Expectation] = {
    "Processes?": lambda shown: shown.number == 2,
    "Which MIG instances has it?": lambda shown: (
        len(shown.lines) == 2
        and all(line["profile"] == "3g.40gb" for line in shown.lines)
        and all(30e9 < line["memory used"] < line["memory"] == 42_412_802_048 for line in shown.lines)
    ),
    "How busy are its MIG instances?": lambda shown: shown.between(
        *(0.05, 1), *(f"{instance} {part}" for instance in INSTANCES for part in PARTS)
    ),
    "Which units of its MIG instances are busy?": lambda shown: (
        shown.between(*(1e-5, 1), *(f"{instance} {unit}" for instance in INSTANCES for unit in UNITS))
        and all(shown.values[f"{each} fp64"] < 0.01 < shown.values[f"{each} graphics"] for each in INSTANCES)
    ),
}
LOST: Mapping[str, Expectation] = {
    "Does it answer?": lambda shown: shown.number == 0,
    "Which checks were bad?": lambda shown: shown.values == {"gpu_lost": 3},
    "Why was it not read?": lambda shown: shown.values == {"lost": 1},
}
RACK: Mapping[str, Expectation] = {
    "Which board is it?": lambda shown: shown.has(name="NVIDIA GB200", chassis="1820000000001", slot="14", tray="4"),
    "How much power does it draw?": lambda shown: 300 < shown.values["module"] < 3000,
    "How many of its links are up?": lambda shown: (
        shown.values["chip to chip expected"] == shown.values["chip to chip up"] == 5
    ),
    "When was each link up?": lambda shown: shown.values["chip to chip 4"] == 1,
    "Were its NVLinks retrained?": lambda shown: shown.between(0.5, 100, "link 2 successful"),
    "How many received bits are wrong?": lambda shown: shown.between(1.5e-254, 1.5e-254) and len(shown.values) == 36,
    "Is it in its NVLink fabric?": lambda shown: (
        shown.lines[0]["registration"] == 3
        and shown.lines[0]["code"] == 0
        and shown.lines[0]["health"] == 1
        and shown.lines[0]["clique"] == "2"
    ),
    "Which checks of the fabric were bad?": lambda shown: shown.between(
        *(0, 0), "access_timeout_recovery", "degraded_bandwidth", "route_recovery", "route_unhealthy"
    ),
}
GPU_VIEWS: tuple[tuple[Mapping[str, str], Mapping[str, Expectation]], ...] = (
    ({"instance": "faulty", "gpu": "2"}, GPU),
    ({"instance": "faulty", "gpu": "1"}, REMAPPED),
    ({"instance": "faulty", "gpu": "3"}, LOST),
    ({"instance": "faulty", "gpu": "4"}, HOT),
    ({"instance": "faulty", "gpu": "7"}, DIVIDED),
    ({"instance": "rack", "gpu": "0"}, RACK),
)
"""Values of the variables, and what the panels show then. The first view has each panel, in their order."""
