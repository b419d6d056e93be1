"""Plans a run: its ranks, the device, environment and first input line of each, and the steps that they take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from gpumon.probe.core.probes import ALGORITHMS, DTYPE, Probe, Setting

WARM_UPS = 5
OPERATIONS = 20
CHECKS = 20
"""Number of checked operations at each size, each with its own data pattern, because some faults are intermittent."""
PAIR_OPERATIONS = 8

Round = tuple[tuple[int, int], ...]
"""Pairs of ranks that exchange data at the same time, the lower rank first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A step in which all ranks time an operation at each size."""

    operation: str
    """Name of the operation in the TABLE of the worker's operations.py."""
    dtype: str = DTYPE
    sizes: tuple[int, ...]
    """Sizes in the probe's `size_unit`."""
    warm_ups: int = WARM_UPS
    operations: int = OPERATIONS
    checks: int = CHECKS
    do: str = field(default="measure", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """A step in which pairs of ranks exchange data, to locate a slow or corrupting rank or path."""

    bytes: int
    rounds: tuple[Round, ...]
    dtype: str = DTYPE
    warm_ups: int = 2
    operations: int = PAIR_OPERATIONS
    do: str = field(default="pairs", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbehave:
    """A step that makes one rank misbehave from now on, for tests. The worker's Fault class parses `fault`."""

    fault: str
    do: str = field(default="misbehave", init=False)


Step = Measure | Pairs | Misbehave


def encode(number: int, step: Step | None) -> bytes:
    """Return the JSON line that orders a rank to take step `number` of the pass, or to end if `step` is None."""
    return json.dumps({"number": number} | ({"do": "end"} if step is None else asdict(step))).encode() + b"\n"


def rounds(ranks: int) -> tuple[Round, ...]:
    """Return rounds in which every pair of `ranks` ranks meets once. The circle method makes the fewest rounds."""
    places = [*range(ranks), *([None] if ranks % 2 else [])]
    last = len(places) - 1
    turns = []
    for turn in range(last):
        circle = [places[0], *(places[1 + (turn + n) % last] for n in range(last))]
        pairs = ((circle[n], circle[last - n]) for n in range(len(places) // 2))
        turns.append(tuple(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)))
    return tuple(turns)


OVERHEAD_BYTES = 3 << 30
"""Bytes of memory on each GPU for the CUDA context and NCCL's buffers. The actual size differs between versions."""
CPU_OVERHEAD_BYTES = 400 << 20
"""Bytes of host memory that torch itself uses in each rank on the CPU."""
CPU_SHARE = 0.5
"""Share of the host's available memory that the buffers of a run may use, because other processes use it too."""

NVLS = "NCCL_NVLS_ENABLE"
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
    # Nothing leaves the host. NCCL would open every network adapter, and fail or hang at a broken one, and a cloud
    # provider's plugin would choose other algorithms than those of the published figures.
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_TUNER_PLUGIN": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Identity of a run: its id, what triggered it, and when it started."""

    id: str
    trigger: str
    started: float
    """Start of the run in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is needed to start the ranks for one NCCL algorithm. A run has one plan for each algorithm."""

    probe: Probe
    setting: Setting
    ranks: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs in the order of the ranks; empty on the CPU."""
    algorithm: str = "default"
    dtypes: tuple[str, ...]
    python: str
    """Path of the Python interpreter that has torch."""
    environment: Mapping[str, str] = field(default_factory=dict)
    nccl_conf: Mapping[str, str] = field(default_factory=dict)
    """Text of /etc/nccl.conf without comments, keyed by the path of that file."""
    deadline: float
    """Seconds from the start of the run after which ranks are killed."""
    fault: str = ""
    """Misbehavior of one rank, for tests. The worker's Fault class parses it."""
    simulated: bool = False
    free: float | None = None
    """Bytes of free memory when the plan was made, as in `fit_to_memory`; None if unknown."""

    @property
    def left_out(self) -> tuple[int, ...]:
        """Return the sizes, without optional ones, that are not measured because too little memory is free for them."""
        ladder = (self.probe.gpu if self.gpus else self.probe.cpu).sizes
        return tuple(size for size in ladder if size not in self.setting.sizes)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Return the steps with which every pass begins: one for each operation and data type."""
        return tuple(
            Measure(operation=operation, dtype=dtype, sizes=self.setting.sizes)
            for operation in self.probe.operations
            for dtype in self.dtypes
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the NCCL settings to store in the result: NCCL_ variables, and the text of nccl.conf by its path."""
        variables = {name: value for name, value in self.environment.items() if name.startswith("NCCL_")}
        return variables | dict(self.nccl_conf)

    @property
    def uses_sharp(self) -> bool:
        """Return whether NCCL may use NVLink SHARP, by NCCL_NVLS_ENABLE and NCCL_ALGO of ranks and /etc/nccl.conf."""
        lines = (line.replace(" ", "") for text in self.nccl_conf.values() for line in text.splitlines())
        values = dict(line.split("=", 1) for line in lines if "=" in line) | dict(self.environment)
        algorithms = values.get("NCCL_ALGO", "").upper()
        allowed = not algorithms or ("NVLS" in algorithms) != algorithms.startswith("^")
        return allowed and values.get(NVLS, "1") != "0"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command line of a rank. With -I Python ignores PYTHON* variables and the user's site-packages."""
        return (self.python, "-I", str(self.probe.worker))

    def orders(self, rank: int, *, parent: int, result: int, rendezvous: int) -> bytes:
        """Return the first line of a rank's input, which describes the rank. `parent`: pid of the agent.

        The rank inherits the descriptors `result`, to which it writes frames, and `rendezvous`, a file without a name
        through which ranks find each other. Other users could connect to a port on loopback.
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


def memory_needed(probe: Probe, size: int) -> float:
    """Return the bytes of GPU memory that a rank needs at most to measure this size."""
    return float(probe.memory(size) + OVERHEAD_BYTES)


def memory_needed_on_cpu(probe: Probe, size: int, ranks: int) -> float:
    """Return the bytes of host memory that must be available before this size is measured on the CPU."""
    return ranks * (probe.memory(size) / CPU_SHARE + CPU_OVERHEAD_BYTES)


def fit_to_memory(probe: Probe, setting: Setting, ranks: int, free: float | None) -> Setting:
    """Return the setting with sizes that fit into `free` bytes of each GPU, or of the host; None changes nothing.

    On GPUs the optional larger sizes that fit are added. On the CPU those that do not fit are removed, except the
    smallest.
    """
    if setting.device == "cuda":
        more = [size for size in setting.sizes_if_fit if free is not None and memory_needed(probe, size) <= free]
        return replace(setting, sizes=(*setting.sizes, *more))
    if free is None:
        return setting
    smallest, *larger = setting.sizes
    fitting = (size for size in larger if memory_needed_on_cpu(probe, size, ranks) <= free)
    return replace(setting, sizes=(smallest, *fitting))


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
    dtypes: Sequence[str] = (),
    free: float | None = None,
    fault: str = "",
) -> tuple[Plan, ...]:
    """Return one plan for each algorithm, with a rank for each real GPU (NCCL), or `probe.ranks` on the CPU (gloo).

    `gpus`: UUIDs. `free`: see `fit_to_memory`. `environment`: configured variables; those of the agent are not
    inherited. Empty `algorithms` and None as `deadline` use those of the probe. `dtypes`: see `Probe.measured_dtypes`.
    """
    real = () if simulated else tuple(gpus)
    ranks = len(real) or probe.ranks
    setting = fit_to_memory(probe, probe.gpu if real else probe.cpu, ranks, free)
    variables = _ENVIRONMENT | dict(environment or {}) | {"CUDA_VISIBLE_DEVICES": ",".join(real)}
    return tuple(
        Plan(
            probe=probe,
            setting=setting,
            ranks=ranks,
            gpus=real,
            algorithm=algorithm,
            dtypes=probe.measured_dtypes(dtypes),
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
