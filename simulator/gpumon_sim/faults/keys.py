"""TABLE: the keys that a scenario can set, with the faults that are a value of one key: part of `table.FAULTS`.

A key delays or fails NVML calls, changes the state of GPUs (`gpu_keys.py`), or sets their workload. Keys without an
effect here, such as `ports`, are applied by other modules. docs/simulation.md describes all keys. Their faults are the
golden pages of tests/outputs and the faults of `make soak`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gpumon.health.verdict import Action
from gpumon.model.snapshot import PLACES
from gpumon_sim import effects, entries, shapes, stuck, workload
from gpumon_sim.faults import gpu_keys
from gpumon_sim.faults.conditions import has_fabric_manager, has_ports, imex, several, whole
from gpumon_sim.faults.row import (
    MINUTE,
    NOW,
    PORT,
    TEMPERATURE_CALLS,
    USES,
    FaultRow,
    ScenarioKey,
    Use,
    after_restart,
    growing,
    of_gpu,
    of_node,
)
from gpumon_sim.nic_kinds import NIC_KINDS
from gpumon_sim.port_counters import NICS_SHAPE, PORTS_SHAPE, SERVICES_SHAPE

_GETTERS = (TEMPERATURE_CALLS, ["nvmlDeviceGetUtilizationRates"], ["nvmlDeviceGetFieldValues"])
"""Called in every poll of every GPU."""
_REPLACED, _CRASHED = 20.0, 60.0
"""Seconds without readings of other GPUs while a sampler is replaced, or restarted with back-off after crashes."""
_HANGING = partial(FaultRow, hides=True, disturbs=_REPLACED)
_CRASHING = partial(FaultRow, hides=True, disturbs=_CRASHED)
_no_driver = partial(_CRASHING, where="node", check="gpu_driver_down", action=Action.FIX)
_function_key = partial(ScenarioKey, value="functions", shape=shapes.listing(shapes.functions), node=True)
_node_key = partial(ScenarioKey, gpu=False, node=True)
_HOLDS_READER: Mapping[Use, str] = {"page": "holds the process that reads"}
_READ_AT_START = "is read once at the start of a process"
_LOAD: Mapping[Use, str] = {"page": "is load and no fault", "soak": "is load and no fault"}


_CALLS = (
    _function_key(
        key="crash",
        help="the process dies of SIGSEGV",
        refuse=effects.crash,
        faults=(
            _CRASHING(
                of_gpu(crash=TEMPERATURE_CALLS),
                name="the library crashes on it",
                check="gpu_unreadable",
                action=Action.RESET,
            ),
            *(_CRASHING(of_gpu(crash=getter)) for getter in _GETTERS[1:]),
            _CRASHING(
                of_node(crash=["nvmlDeviceGetCount*"]),
                where="node",
                name="the library crashes at every start",
                check="gpu_driver_down",
                within=3 * MINUTE,
            ),
        ),
        without={"page": "ends the process that reads"},
    ),
    _function_key(
        key="hang",
        help="the call returns when this row is removed",
        refuse=effects.hang,
        faults=(
            _HANGING(
                of_gpu(hang=TEMPERATURE_CALLS),
                name="a driver call on it does not return",
                check="gpu_stuck",
                action=Action.REBOOT,
            ),
            *(_HANGING(of_gpu(hang=getter)) for getter in _GETTERS[1:]),
            _CRASHING(
                of_node(hang=["nvmlDeviceGetCount*"]),
                where="node",
                name="a driver call for the whole node does not return",
                check="gpu_driver_down",
                action=Action.REBOOT,
                within=3 * MINUTE,
            ),
        ),
        without=_HOLDS_READER,
    ),
    _function_key(
        key="hang_forever",
        help="the call never returns",
        refuse=effects.hang_forever,
        faults=tuple(_HANGING(of_gpu(hang_forever=getter)) for getter in _GETTERS),
        without=_HOLDS_READER,
    ),
    ScenarioKey(
        key="delay",
        value="functions: seconds",
        help="the call takes this much longer",
        shape=shapes.by_key(shapes.functions, shapes.number(0, 86400, "s")),
        node=True,
        refuse=effects.delay,
        faults=(
            *(FaultRow(of_gpu(delay={"nvmlDeviceGet*": seconds})) for seconds in (0.005, 0.05, 0.2)),
            FaultRow(of_node(delay={"nvmlDevice*": 0.01})),
        ),
        without={"page": "changes no line"},
    ),
    ScenarioKey(
        key="fail",
        value="functions: code",
        help="the call returns this code (`15` or `GPU_IS_LOST`)",
        shape=shapes.by_key(shapes.functions, shapes.code),
        node=True,
        refuse=effects.fail,
        faults=(
            FaultRow(of_gpu(fail={"nvmlDeviceGetUtilizationRates": 999, "nvmlDeviceGetClockInfo": "NOT_SUPPORTED"})),
            FaultRow(
                of_gpu(fail={"nvmlDeviceGet*": 999}),
                hides=True,
                name="every call on it answers an unknown error",
                check="gpu_init_failed",
                action=Action.RESET,
            ),
            *(FaultRow(of_gpu(fail={"nvmlDeviceGet*": code}), hides=True) for code in (4, 15, 16)),
            *(FaultRow(of_gpu(fail={"nvmlDeviceGetFieldValues": code})) for code in (3, 4, 27, 4711)),
            FaultRow(
                of_gpu(fail={"nvmlDeviceGetUtilizationRates": 999}),
                name="one call on it answers an unknown error",
                check="gpumon_poll_errors",
                action=Action.FIX,
                where="node",
                on=whole,  # not called if MIG is enabled
            ),
            FaultRow(of_node(fail={"nvmlEventSetWait*": 999})),
            FaultRow(of_node(fail={"nvmlDeviceGetCount*": 999})),
        ),
    ),
    _node_key(
        key="driver",
        value="`absent`, `not_loaded`, `mismatch`",
        help="initialisation returns 12, 9 or 18; without a kernel module all calls return 9",
        shape=shapes.one_of(*effects.DRIVERS),
        refuse=effects.driver,
        faults=(
            _no_driver(of_node(driver="not_loaded"), name="the kernel module is gone"),
            _no_driver(after_restart(node={"driver": "absent"}), name="the driver's library is not installed"),
            _no_driver(after_restart(node={"driver": "mismatch"}), name="library and kernel module differ"),
        ),
        without={"page": "lets no poll begin"},
    ),
    _node_key(
        key="root",
        value="`false`",
        help="the caller is not root: functions that need root (SRAM state) return 4",
        shape=shapes.flag,
        refuse=effects.root,
        faults=(FaultRow(of_node(root=False)),),
    ),
)
_port = partial(FaultRow, where=PORT, on=has_ports)
_PORT_FAULTS = (
    _port(of_node(ports={PORT: {"state": "down"}}), name="a port is down", check="ib_port_down", within=6 * MINUTE),
    _port(
        of_node(ports={PORT: {"state": "init"}}),
        name="a port has a link and no subnet manager",
        check="ib_port_down",
        within=6 * MINUTE,
    ),
    _port(
        of_node(ports={PORT: {"rate": 50}}),
        name="a port runs at a fraction of its speed",
        check="ib_rate_low",
        within=10 * MINUTE,
    ),
    _port(
        of_node(ports={PORT: {"absent": True}}),
        name="an adapter is gone",
        check="ib_device_missing",
        action=Action.REBOOT,
        within=9 * MINUTE,
    ),
    *(
        _port(of_node(ports={PORT: {"counters": {counter: count}}}), name=name, check=check, within=minutes * MINUTE)
        for counter, count, name, check, minutes in (
            ("link_downed", growing(0.02), "a port was down briefly", "ib_port_flapping", 10),
            ("excessive_buffer_overrun_errors", 1, "a port overran its buffers", "ib_fatal_counter", 6),
            ("symbol_error", growing(20), "a port counts symbol errors: 20 a second", "ib_symbol_errors", 10),
            ("port_rcv_errors", growing(50), "a port counts receive errors: 50 a second", "ib_error_rates", 10),
            ("port_xmit_discards", growing(500), "a port discards 500 packets a second", "roce_stress", 15),
        )
    ),
    *(
        _port(of_node(ports={PORT: fault}), where="node", name=name, check="gpumon_links_unread", within=10 * MINUTE)
        for fault, name in (
            ({"unreadable": ["state", "rate"]}, "reading the files of a port fails"),
            ({"hang": True}, "reading the files of a port does not return"),
        )
    ),
)
_NODE = (
    _node_key(
        key="ports",
        value='device or `"*"`: see below',
        help="InfiniBand ports",
        shape=PORTS_SHAPE,
        faults=(
            FaultRow(of_node(ports={"mlx5_3": {"state": "down"}})),
            FaultRow(of_node(ports={"mlx5_5": {"hang": True}})),
            *_PORT_FAULTS,
        ),
    ),
    _node_key(
        key="nics",
        value="list of " + ", ".join(f"`{kind}`" for kind in NIC_KINDS),
        help="network adapters beside the fabric ports: gpumon_sim/nic_kinds.py",
        shape=NICS_SHAPE,
        faults=(
            FaultRow(of_node(nics=["azure_vf", "limited_pf", "storage"])),
            FaultRow(of_node(nics=["limited_pf", "bond"])),
        ),
    ),
    _node_key(
        key="services",
        value="`fabric_manager`, `imex`: `running`, `stopped`, `restarting`, `not_installed`, `container`",
        help="services of the host",
        shape=SERVICES_SHAPE,
        faults=(
            FaultRow(
                of_node(services={"fabric_manager": "stopped"}),
                where="node",
                name="the fabric manager has stopped",
                check="fabric_manager_down",
                action=Action.RESTART,
                on=has_fabric_manager,
            ),
            FaultRow(
                of_node(services={"imex": "stopped"}),
                where="node",
                profile="gb200x4",
                name="IMEX has stopped",
                check="imex_unhealthy",
                action=Action.RESTART,
                on=imex,
                within=12 * MINUTE,
            ),
        ),
    ),
    _node_key(  # NVIDIA/open-gpu-kernel-modules 595.45.04: imex_session_api.c, gpu.c (gpuSetRecoveryAction)
        key="imex_crashed",
        value="`true`",
        help="nvidia-imex ended while memory was exported: recovery action 5 on all GPUs, until the row is removed",
        shape=shapes.flag,
        alter=lambda on, state, _: replace(state, recovery_action=5) if on else state,
        faults=(FaultRow(of_node(imex_crashed=True), profile="gb200x4"),),
    ),
    _node_key(
        key="stuck_processes",
        value="list of `gpus`, `since`, `until`, `waits_in`",
        help="processes that hold these GPUs and do not return from the kernel",
        shape=shapes.listing(stuck.entry),
        faults=(
            FaultRow(of_node(stuck_processes=[{"gpus": [3]}])),
            FaultRow(
                of_node(stuck_processes=[{"gpus": [0], "since": NOW}]),
                where="node",
                name="a process that uses it is blocked in the kernel",
                check="gpu_process_stuck",
                action=Action.REBOOT,
                within=8 * MINUTE,
            ),
            FaultRow(
                of_node(stuck_processes=[{"gpus": [0], "since": NOW, "waits_in": "lustre"}]),
                where="node",
                name="a process that uses it waits for Lustre",
                check="gpu_process_stuck",
                on=lambda profile: not several(profile),
                within=8 * MINUTE,
            ),
        ),
        without={"page": "is reported by a verdict, after minutes"},
    ),
    ScenarioKey(
        key="idle",
        value="`true`",
        help="no process at any time",
        shape=shapes.flag,
        node=True,
        plan=lambda on, _seed, _gpu: workload.IDLE if on else None,
        faults=(FaultRow(of_node(idle=True)),),
        without=_LOAD,
    ),
    ScenarioKey(
        key="busy",
        value="`true`",
        help="one process a GPU at all times",
        shape=shapes.flag,
        node=True,
        plan=lambda on, seed, _gpu: workload.busy(seed) if on else None,
        faults=(FaultRow(of_node(busy=True)),),
        without=_LOAD,
    ),
    _node_key(
        key="jobs",
        value="list of `start`, `end`, `load`, `memory`, `gpus`, `cgroup`, `pids`, `phases`, `repeat`",
        help="only these jobs",
        shape=shapes.listing(entries.job),
        plan=lambda runs, _seed, gpu: workload.of_jobs(runs, gpu),
        faults=(FaultRow(of_node(jobs=[{"start": 60, "end": 360, "load": 0.97}])),),
        without=_LOAD,
    ),
    _node_key(
        key="seed",
        value="number",
        help="another node of the same kind: other uuids, other jobs",
        shape=shapes.whole(0, 2**31),
        faults=(FaultRow(of_node(seed=7)),),
        without=dict.fromkeys(USES, "is another node of the same kind"),
    ),
    _node_key(
        key="driver_version",
        value='`"580.65.06"`',
        help="another driver: other functions, fields and field ids, see below",
        shape=entries.driver_version,
        faults=(
            FaultRow(of_node(driver_version="535.183.01")),
            FaultRow(of_node(driver_version="580.105.08"), profile="a100x8"),
        ),
        without={"soak": _READ_AT_START, "truth": "is no fault: see benign.py"},
    ),
    _node_key(
        key="place",
        value="`host`, `guest`, `container`, `sandbox`",
        help="the system that the agent's children detect when they start, see below",
        shape=shapes.one_of(*PLACES),
        faults=(FaultRow(of_node(place="container")),),
        without={"page": "decides how many GPUs are expected, and no reading", "soak": _READ_AT_START},
    ),
)
KEYS: Mapping[str, ScenarioKey] = {row.key: row for row in (*_CALLS, *gpu_keys.ROWS, *_NODE)}
"""In the order in which they are applied."""
