"""What each panel of the dashboard of one GPU must show: GPU_VIEWS."""

from __future__ import annotations

from collections.abc import Mapping

from panel_content import SIZE, WITHIN, Expectation, elsewhere, seconds_ago

USED = 72_603_402_240
"""Bytes that the process on a GPU of an H100 allocates."""
UNITS = ("graphics", "fp16", "fp32", "fp64", "integer")
"""Parts of a GPU by the names in the legend."""
PARTS = ("multiprocessors", "occupancy", "tensor cores", "memory bandwidth")
INSTANCES = ("3g.40gb 1", "3g.40gb 2")
LIMITS = ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
POLICIES = ("thermal", "board_limit", "low_utilization", "reliability")

GPU: Mapping[str, Expectation] = {
    "Verdict?": lambda content: content.number == 3,
    "Does it answer?": lambda content: content.number == 1,
    "Driver recommends?": lambda content: content.number == 0,
    "Processes?": lambda content: content.number == 1,
    "Which board is it?": lambda content: content.has(name="NVIDIA H100 80GB HBM3", vbios="96.00.A5.00.01"),
    "What is wrong with it?": lambda content: content.has(check="nvlink_down", action="reset"),
    "How has this GPU been?": lambda content: content.values == {"verdict": 3},
    "Which checks were bad?": lambda content: content.values["nvlink_down"] == 3,
    "Why was it not read?": lambda content: content.nothing,
    "When did it last log each Xid?": lambda content: (
        [line["Xid"] for line in content.lines if line.get("count") == 1] == ["13"]
        and 0 < seconds_ago(content.line(Xid="13")["last"]) < 2 * WITHIN
    ),
    "Which Xids occurred in this time?": lambda content: content.values == {"Xid 13": 1},
    "How busy are its parts?": lambda content: content.between(
        *(0.05, 1),
        *("kernels", "multiprocessors", "tensor cores", "memory bandwidth"),
        *("occupancy of multiprocessors", "memory reads and writes"),
    ),
    "How is its memory used?": lambda content: (
        0.4e9 < content.values["reserved"] < content.values["used"] == USED < content.values["size"] == SIZE
        and content.values["BAR1 used"] == 1 << 20
        and content.values["BAR1 size"] == 1 << 37
    ),
    "How fast are its clocks?": lambda content: (
        1e9 < content.values["sm"] <= content.values["maximum sm"] == 1.98e9 and content.values["memory"] == 2.619e9
    ),
    "How long was each clock limit active?": lambda content: content.between(
        *(0, 1.1), *LIMITS, *(f"policy {policy}" for policy in POLICIES)
    ),
    "Which clock limits are active?": lambda content: set(content.values) <= {"sw_power_cap"},
    "In which performance state is it?": lambda content: content.values == {"state": 0},
    "Which of its units are busy?": lambda content: (
        content.between(1e-4, 1, *UNITS) and content.values["graphics"] > 0.2 and content.values["fp64"] < 0.01
    ),
    "How busy are its media engines?": lambda content: content.between(0, 0, "encoder", "decoder", "jpeg", "ofa"),
    "Which processes use it?": lambda content: [line["memory used"] for line in content.lines] == [USED],
    "Which modes are set?": lambda content: (
        content.lines == [{"ECC": 1, "ECC pending": 1, "persistence": 1, "compute mode": 0, "MIG": 0, "MIG pending": 0}]
    ),
    "How hot is it?": lambda content: (
        30 < content.values["core"] < content.values["memory"] < content.values["core slows down at"] == 89
        and content.values["memory slows down at"] == 95
        and content.values["core shuts down at"] == 92
    ),
    "How far is it from slowing down?": lambda content: (
        1 < content.values["margin"] < 60 and content.values["hardware slows down below"] == -2
    ),
    "How much power does it draw?": lambda content: (
        all(60 < content.values[name] <= 750 for name in ("power", "last second", "now"))
        and content.values["limit"] == 700
        and 40 < content.values["memory"] < 100
    ),
    "Which power limits can be set?": lambda content: (
        content.lines == [{"requested": 700, "default": 700, "lowest": 200, "highest": 700}]
    ),
    "How fast is its fan?": lambda content: content.nothing,
    "How many ECC errors has it counted?": lambda content: (
        3 < content.values["corrected dram"] < 2 * WITHIN
        and 3 < content.values["corrected dram, lifetime"] < 2 * WITHIN
        and content.values["uncorrected dram"] == content.values["uncorrected dram, lifetime"] == 0
    ),
    "How many spare rows are left?": lambda content: (
        content.values == {"max": 2560} | dict.fromkeys(("high", "partial", "low", "none"), 0)
    ),
    "Are memory rows remapped?": lambda content: content.lines == [{"remapped rows": 0, "pending": 0, "failed": 0}],
    "Must the board be replaced?": lambda content: content.lines == [{"SRAM threshold exceeded": 0}],
    "How wide is its PCIe link?": lambda content: (
        content.values == {"lanes": 8, "possible": 16, "generation": 5, "possible generation": 5}
    ),
    "How much goes over PCIe and NVLink?": lambda content: (
        1e9 < content.values["NVLink received"] == content.values["NVLink sent"] < 450e9
        and 1e8 < content.values["PCIe sent"] == content.values["PCIe received"] < 64e9
    ),
    "Did its PCIe link have errors?": lambda content: content.between(1, 200, "replay"),
    "Did its NVLinks have errors?": lambda content: content.between(1, 500, "link 9 crc"),
    "How many of its links are up?": lambda content: (
        content.values == {"NVLinks": 18, "NVLinks expected": 18, "NVLinks up": 17}
    ),
    "When was each link up?": lambda content: (
        content.values == {f"NVLink {link}": float(link != 3) for link in range(18)}
    ),
    "Were its NVLinks retrained?": elsewhere,
    "How many received bits are wrong?": lambda content: content.nothing,
    "How fast are its NVLinks?": lambda content: content.values == {"slowest": 26.562e9},
    "Where do its NVLinks go?": lambda content: (
        len(content.lines) == 17 and content.has(link="9", kind="switch", peer="00000000:07:00.0")
    ),
    "Is it in its NVLink fabric?": lambda content: content.lines == [{"registration": 3, "code": 0}],
    "Which checks of the fabric were bad?": lambda content: content.nothing,
    "Which MIG instances has it?": lambda content: content.lines == [{"profile": "MIG is off"}],
    "How busy are its MIG instances?": lambda content: content.nothing,
    "Which units of its MIG instances are busy?": lambda content: content.nothing,
}
REMAPPED: Mapping[str, Expectation] = {
    "Are memory rows remapped?": lambda content: content.lines == [{"remapped rows": 1, "pending": 1, "failed": 1}],
    "Verdict?": lambda content: content.number == 3,
}
HOT: Mapping[str, Expectation] = {
    "How fast is its fan?": lambda content: content.values == {"fan": 0.7},
    "How long was each clock limit active?": lambda content: (
        0.8 < content.values["hw_thermal"] < 1.2
        and 0.8 < content.values["sw_thermal"] < 1.2
        and content.values["hw_power_brake"] == 0
        and 0.5 < content.peaks["policy thermal"] <= 1
    ),
    "How hot is it?": lambda content: content.values["core"] == 95,
    "How far is it from slowing down?": lambda content: content.values["margin"] == -8,
    "Which clock limits are active?": lambda content: (
        {"hw_thermal", "hw_slowdown", "sw_thermal"} <= set(content.values) and set(content.values.values()) == {1}
    ),
}
DIVIDED: Mapping[str, Expectation] = {
    "Processes?": lambda content: content.number == 2,
    "Which MIG instances has it?": lambda content: (
        len(content.lines) == 2
        and all(line["profile"] == "3g.40gb" for line in content.lines)
        and all(30e9 < line["memory used"] < line["memory"] == 42_412_802_048 for line in content.lines)
    ),
    "How busy are its MIG instances?": lambda content: content.between(
        *(0.05, 1), *(f"{instance} {part}" for instance in INSTANCES for part in PARTS)
    ),
    "Which units of its MIG instances are busy?": lambda content: (
        content.between(*(1e-5, 1), *(f"{instance} {unit}" for instance in INSTANCES for unit in UNITS))
        and all(content.values[f"{each} fp64"] < 0.01 < content.values[f"{each} graphics"] for each in INSTANCES)
    ),
}
LOST: Mapping[str, Expectation] = {
    "Does it answer?": lambda content: content.number == 0,
    "Which checks were bad?": lambda content: content.values == {"gpu_lost": 3},
    "Why was it not read?": lambda content: content.values == {"lost": 1},
}
RACK: Mapping[str, Expectation] = {
    "Which board is it?": lambda content: content.has(
        name="NVIDIA GB200", chassis="1820000000001", slot="14", tray="4"
    ),
    "How much power does it draw?": lambda content: 300 < content.values["module"] < 3000,
    "How many of its links are up?": lambda content: (
        content.values["chip to chip expected"] == content.values["chip to chip up"] == 5
    ),
    "When was each link up?": lambda content: content.values["chip to chip 4"] == 1,
    "Were its NVLinks retrained?": lambda content: content.between(0.5, 100, "link 2 successful"),
    "How many received bits are wrong?": lambda content: (
        content.between(1.5e-254, 1.5e-254) and len(content.values) == 36
    ),
    "Is it in its NVLink fabric?": lambda content: (
        content.lines[0]["registration"] == 3
        and content.lines[0]["code"] == 0
        and content.lines[0]["health"] == 1
        and content.lines[0]["clique"] == "2"
    ),
    "Which checks of the fabric were bad?": lambda content: content.between(
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
