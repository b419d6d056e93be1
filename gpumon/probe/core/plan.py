"""Plan a run: which ranks, on which devices, with which environment, orders and steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from gpumon.probe.core.probes import ALGORITHMS, Probe, Setting

WARM_UPS = 5
OPERATIONS = 20
PAIR_OPERATIONS = 8

Round = tuple[tuple[int, int], ...]
"""Pairs of ranks that exchange at the same time, the lower rank first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Time a collective at each size."""

    collective: str
    """Name in the worker's table."""
    dtype: str = "float32"
    sizes: tuple[int, ...]
    """Bytes."""
    warm_ups: int = WARM_UPS
    operations: int = OPERATIONS
    do: str = field(default="measure", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Let each two ranks exchange, to locate a slow or wrong one."""

    bytes: int
    rounds: tuple[Round, ...]
    dtype: str = "float32"
    warm_ups: int = 2
    operations: int = PAIR_OPERATIONS
    do: str = field(default="pairs", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbehave:
    """Make one rank misbehave from now on, for tests. The worker's Fault parses it."""

    fault: str
    do: str = field(default="misbehave", init=False)


Step = Measure | Pairs | Misbehave


def encode(number: int, step: Step | None) -> bytes:
    """Return the line that orders a step; None is the end."""
    return json.dumps({"number": number} | ({"do": "end"} if step is None else asdict(step))).encode() + b"\n"


def rounds(ranks: int) -> tuple[Round, ...]:
    """Return every pair once, in the fewest rounds, by the circle method: 7 rounds of 4 pairs for 8 ranks."""
    places = [*range(ranks), *([None] if ranks % 2 else [])]
    last = len(places) - 1
    turns = []
    for turn in range(last):
        circle = [places[0], *(places[1 + (turn + n) % last] for n in range(last))]
        pairs = ((circle[n], circle[last - n]) for n in range(len(places) // 2))
        turns.append(tuple(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)))
    return tuple(turns)


CPU_RANKS = 2
OVERHEAD_BYTES = 3 << 30
"""Memory on each GPU for the CUDA context and NCCL's buffers, which differ between versions."""
BUFFERS = 2
"""Buffers of the largest size: most collectives and all pairs send from one and receive into another."""
CPU_OVERHEAD_BYTES = 400 << 20
"""Memory of each rank on the CPU for torch itself."""
CPU_SHARE = 0.5
"""Max share of the host's free memory: other processes use it too."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {
    "PATH": _PATH,
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_CONF_FILE": "/dev/null",  # instead of ~/.nccl.conf; /etc/nccl.conf belongs to the host, like its topology
    "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_FILE": "/dev/stderr",  # standard output is block-buffered, and a kill would lose the last block
    "NCCL_RAS_ENABLE": "0",  # its port belongs to the jobs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Identity of a run: what triggered it, and when."""

    id: str
    trigger: str
    """schedule or request."""
    started: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a set of ranks needs to start. A run has one plan for each algorithm."""

    probe: Probe
    setting: Setting
    ranks: int
    gpus: tuple[str, ...] = ()
    """UUIDs in the order of the ranks; empty on the CPU."""
    algorithm: str = "default"
    dtypes: tuple[str, ...] = ("float32",)
    python: str
    """Interpreter that has torch."""
    environment: Mapping[str, str] = field(default_factory=dict)
    nccl_conf: Mapping[str, str] = field(default_factory=dict)
    """Lines of /etc/nccl.conf, by its path."""
    deadline: float
    """Seconds."""
    fault: str = ""
    """For tests: what one rank does wrong. The worker's Fault parses it."""
    simulated: bool = False
    free: float | None = None
    """Bytes of free memory when the plan was made, see `fit_to_memory`."""

    @property
    def left_out(self) -> tuple[int, ...]:
        """Sizes for which there is not enough memory."""
        ladder = (self.probe.gpu if self.gpus else self.probe.cpu).sizes
        return tuple(size for size in ladder if size not in self.setting.sizes)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Steps that every run takes first."""
        return tuple(
            Measure(collective=collective, dtype=dtype, sizes=self.setting.sizes)
            for collective in self.probe.collectives
            for dtype in self.dtypes
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of NCCL from variables and from its file. A variable takes precedence."""
        variables = {name: value for name, value in self.environment.items() if name.startswith("NCCL_")}
        return variables | dict(self.nccl_conf)

    @property
    def command(self) -> tuple[str, ...]:
        """Command of a rank, isolated from the worker's folder and from the user's own packages."""
        return (self.python, "-I", str(self.probe.worker))

    def orders(self, rank: int, *, parent: int, result: int, rendezvous: int) -> bytes:
        """Return the orders for one rank, which inherits two descriptors.

        `result`: for its frames. `rendezvous`: a file without a name, where the ranks meet. Other users could reach a
        port on loopback.
        """
        orders = {
            "parent": parent,
            "result": result,
            "rank": rank,
            "ranks": self.ranks,
            "backend": self.setting.backend,
            "device": self.setting.device,
            "rendezvous": f"/proc/self/fd/{rendezvous}",
            "timeout": 2 * self.deadline,  # the agent enforces the deadline, and reports it
            "fault": self.fault,
        }
        return json.dumps(orders).encode() + b"\n"


def memory_needed(size: int) -> float:
    """Return the max bytes that a rank needs on its GPU for this size."""
    return float(BUFFERS * size + OVERHEAD_BYTES)


def memory_needed_on_cpu(size: int, ranks: int) -> float:
    """Return the bytes that must be free before this size is measured."""
    return ranks * (BUFFERS * size / CPU_SHARE + CPU_OVERHEAD_BYTES)


def fit_to_memory(setting: Setting, ranks: int, free: float | None) -> Setting:
    """Return the setting with the larger sizes that fit; on the CPU, without the sizes that do not fit.

    `free`: bytes on each GPU, or on the CPU for all ranks together; None: unknown.
    """
    if setting.device == "cuda":
        more = [size for size in setting.sizes_if_fit if free is not None and memory_needed(size) <= free]
        return replace(setting, sizes=(*setting.sizes, *more))
    if free is None:
        return setting
    smallest, *larger = setting.sizes
    return replace(setting, sizes=(smallest, *(size for size in larger if memory_needed_on_cpu(size, ranks) <= free)))


def make_plans(
    probe: Probe,
    gpus: Sequence[str],
    *,
    python: str,
    simulated: bool = False,
    environment: Mapping[str, str] | None = None,
    algorithms: Sequence[str] = (),
    nccl_conf: Mapping[str, str] | None = None,
    deadline: float | None = None,
    dtypes: tuple[str, ...] = ("float32",),
    free: float | None = None,
    cpu_ranks: int = CPU_RANKS,
    fault: str = "",
) -> tuple[Plan, ...]:
    """Return a plan for each algorithm: one rank for each real GPU over NCCL, else ranks on the CPU over gloo.

    `gpus`: UUIDs. `free`: see `fit_to_memory`. `environment`: what the configuration adds; nothing else is inherited.
    `algorithms`: for NCCL; empty for the probe's own.
    """
    real = () if simulated else tuple(gpus)
    ranks = len(real) or cpu_ranks
    setting = fit_to_memory(probe.gpu if real else probe.cpu, ranks, free)
    variables = _ENVIRONMENT | dict(environment or {}) | {"CUDA_VISIBLE_DEVICES": ",".join(real)}
    return tuple(
        Plan(
            probe=probe,
            setting=setting,
            ranks=ranks,
            gpus=real,
            algorithm=algorithm,
            dtypes=dtypes,
            python=python,
            environment={**variables, **ALGORITHMS[algorithm]},
            nccl_conf=nccl_conf or {},
            deadline=setting.deadline if deadline is None else deadline,
            fault=fault,
            simulated=simulated,
            free=free,
        )
        for algorithm in (algorithms if real else ()) or setting.algorithms
    )
