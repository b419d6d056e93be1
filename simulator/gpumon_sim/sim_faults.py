"""TABLE: the keys that a scenario can set, called faults, one row for each.

A fault delays or fails NVML calls, changes the state of GPUs (`gpu_faults.py`), or sets their workload. Faults without
an effect here, such as `ports`, are applied by other modules. docs/simulation.md describes all faults. The examples of
a row are the golden pages of tests/outputs, the faults of `make soak`, and, with an expected verdict, of `make truth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gpumon.health.verdict import Action
from gpumon.model.snapshot import PLACES
from gpumon_sim import effects, entries, gpu_faults, shapes, stuck, workload
from gpumon_sim.nic_kinds import NIC_KINDS
from gpumon_sim.port_counters import NICS_SHAPE, PORTS_SHAPE, SERVICES_SHAPE
from gpumon_sim.sim_fault import (
    MINUTE,
    NOW,
    PORT,
    USES,
    Example,
    SimFault,
    Use,
    growing,
    has_fabric_manager,
    has_ports,
    imex,
    on_node,
    several,
    whole,
)

TEMPERATURE_CALLS = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]
"""Functions of which every poll of a GPU calls one."""
_GETTERS = (TEMPERATURE_CALLS, ["nvmlDeviceGetUtilizationRates"], ["nvmlDeviceGetFieldValues"])
"""Called in every poll of every GPU."""
_REPLACED, _CRASHED = 20.0, 60.0
"""Seconds without readings of other GPUs while a sampler is replaced, or restarted with back-off after crashes."""
_HANGING = partial(Example, hides=True, disturbs=_REPLACED)
_CRASHING = partial(Example, hides=True, disturbs=_CRASHED)
_no_driver = partial(on_node, disturbs=_CRASHED, check="gpu_driver_down", action=Action.FIX, restarts=True)
_function_fault = partial(SimFault, value="functions", shape=shapes.listing(shapes.functions), node=True)
_node_fault = partial(SimFault, gpu=False, node=True)
_HOLDS_READER: Mapping[Use, str] = {"page": "holds the process that reads"}
_READ_AT_START = "is read once at the start of a process"
_LOAD: Mapping[Use, str] = {"page": "is load and no fault", "soak": "is load and no fault"}


_CALLS = (
    _function_fault(
        key="crash",
        help="the process dies of SIGSEGV",
        refuse=effects.crash,
        examples=(
            _CRASHING(TEMPERATURE_CALLS, name="the library crashes on it", check="gpu_unreadable", action=Action.RESET),
            *map(_CRASHING, _GETTERS[1:]),
            _CRASHING(
                ["nvmlDeviceGetCount*"],
                None,
                name="the library crashes at every start",
                check="gpu_driver_down",
                within=3 * MINUTE,
            ),
        ),
        without={"page": "ends the process that reads"},
    ),
    _function_fault(
        key="hang",
        help="the call returns when this row is removed",
        refuse=effects.hang,
        examples=(
            _HANGING(
                TEMPERATURE_CALLS, name="a driver call on it does not return", check="gpu_stuck", action=Action.REBOOT
            ),
            *map(_HANGING, _GETTERS[1:]),
            _CRASHING(
                ["nvmlDeviceGetCount*"],
                None,
                name="a driver call for the whole node does not return",
                check="gpu_driver_down",
                action=Action.REBOOT,
                within=3 * MINUTE,
            ),
        ),
        without=_HOLDS_READER,
    ),
    _function_fault(
        key="hang_forever",
        help="the call never returns",
        refuse=effects.hang_forever,
        examples=tuple(map(_HANGING, _GETTERS)),
        without=_HOLDS_READER,
    ),
    SimFault(
        key="delay",
        value="functions: seconds",
        help="the call takes this much longer",
        shape=shapes.by_key(shapes.functions, shapes.number(0, 86400, "s")),
        node=True,
        refuse=effects.delay,
        examples=(
            *(Example({"nvmlDeviceGet*": seconds}) for seconds in (0.005, 0.05, 0.2)),
            on_node({"nvmlDevice*": 0.01}),
        ),
        without={"page": "changes no line"},
    ),
    SimFault(
        key="fail",
        value="functions: code",
        help="the call returns this code (`15` or `GPU_IS_LOST`)",
        shape=shapes.by_key(shapes.functions, shapes.code),
        node=True,
        refuse=effects.fail,
        examples=(
            Example({"nvmlDeviceGetUtilizationRates": 999, "nvmlDeviceGetClockInfo": "NOT_SUPPORTED"}),
            Example(
                {"nvmlDeviceGet*": 999},
                hides=True,
                name="every call on it answers an unknown error",
                check="gpu_init_failed",
                action=Action.RESET,
            ),
            *(Example({"nvmlDeviceGet*": code}, hides=True) for code in (4, 15, 16)),
            *(Example({"nvmlDeviceGetFieldValues": code}) for code in (3, 4, 27, 4711)),
            Example(
                {"nvmlDeviceGetUtilizationRates": 999},
                name="one call on it answers an unknown error",
                check="gpumon_poll_errors",
                action=Action.FIX,
                about="node",
                on=whole,  # not called if MIG is enabled
            ),
            on_node({"nvmlEventSetWait*": 999}),
            on_node({"nvmlDeviceGetCount*": 999}),
        ),
    ),
    _node_fault(
        key="driver",
        value="`absent`, `not_loaded`, `mismatch`",
        help="initialisation returns 12, 9 or 18; without a kernel module all calls return 9",
        shape=shapes.one_of(*effects.DRIVERS),
        refuse=effects.driver,
        examples=(
            _CRASHING("not_loaded", None, name="the kernel module is gone", check="gpu_driver_down", action=Action.FIX),
            _no_driver("absent", name="the driver's library is not installed"),
            _no_driver("mismatch", name="library and kernel module differ"),
        ),
        without={"page": "lets no poll begin"},
    ),
    _node_fault(
        key="root",
        value="`false`",
        help="the caller is not root: functions that need root (SRAM state) return 4",
        shape=shapes.flag,
        refuse=effects.root,
        examples=(on_node(value=False),),
    ),
)
_port = partial(on_node, about=PORT, on=has_ports)
_PORT_FAULTS = (
    _port({PORT: {"state": "down"}}, name="a port is down", check="ib_port_down", within=6 * MINUTE),
    _port(
        {PORT: {"state": "init"}},
        name="a port has a link and no subnet manager",
        check="ib_port_down",
        within=6 * MINUTE,
    ),
    _port({PORT: {"rate": 50}}, name="a port runs at a fraction of its speed", check="ib_rate_low", within=10 * MINUTE),
    _port(
        {PORT: {"absent": True}},
        name="an adapter is gone",
        check="ib_device_missing",
        action=Action.REBOOT,
        within=9 * MINUTE,
    ),
    *(
        _port({PORT: {"counters": {counter: count}}}, name=name, check=check, within=minutes * MINUTE)
        for counter, count, name, check, minutes in (
            ("link_downed", growing(0.02), "a port was down briefly", "ib_port_flapping", 10),
            ("excessive_buffer_overrun_errors", 1, "a port overran its buffers", "ib_fatal_counter", 6),
            ("symbol_error", growing(20), "a port counts symbol errors: 20 a second", "ib_symbol_errors", 10),
            ("port_rcv_errors", growing(50), "a port counts receive errors: 50 a second", "ib_error_rates", 10),
            ("port_xmit_discards", growing(500), "a port discards 500 packets a second", "roce_stress", 15),
        )
    ),
    *(
        _port({PORT: fault}, about="node", name=name, check="gpumon_links_unread", within=10 * MINUTE)
        for fault, name in (
            ({"unreadable": ["state", "rate"]}, "reading the files of a port fails"),
            ({"hang": True}, "reading the files of a port does not return"),
        )
    ),
)
_NODE = (
    _node_fault(
        key="ports",
        value='device or `"*"`: see below',
        help="InfiniBand ports",
        shape=PORTS_SHAPE,
        examples=(
            on_node({"mlx5_3": {"state": "down"}}),
            on_node({"mlx5_5": {"hang": True}}),
            *_PORT_FAULTS,
        ),
    ),
    _node_fault(
        key="nics",
        value="list of " + ", ".join(f"`{kind}`" for kind in NIC_KINDS),
        help="network adapters beside the fabric ports: gpumon_sim/nic_kinds.py",
        shape=NICS_SHAPE,
        examples=(on_node(["azure_vf", "limited_pf", "storage"]), on_node(["limited_pf", "bond"])),
    ),
    _node_fault(
        key="services",
        value="`fabric_manager`, `imex`: `running`, `stopped`, `restarting`, `not_installed`, `container`",
        help="services of the host",
        shape=SERVICES_SHAPE,
        examples=(
            on_node(
                {"fabric_manager": "stopped"},
                name="the fabric manager has stopped",
                check="fabric_manager_down",
                action=Action.RESTART,
                on=has_fabric_manager,
            ),
            on_node(
                {"imex": "stopped"},
                profile="gb200x4",
                name="IMEX has stopped",
                check="imex_unhealthy",
                action=Action.RESTART,
                on=imex,
                within=12 * MINUTE,
            ),
        ),
    ),
    _node_fault(  # NVIDIA/open-gpu-kernel-modules 595.45.04: imex_session_api.c, gpu.c (gpuSetRecoveryAction)
        key="imex_crashed",
        value="`true`",
        help="nvidia-imex ended while memory was exported: recovery action 5 on all GPUs, until the row is removed",
        shape=shapes.flag,
        alter=lambda on, state, _: replace(state, recovery_action=5) if on else state,
        examples=(on_node(value=True, profile="gb200x4"),),
    ),
    _node_fault(
        key="stuck_processes",
        value="list of `gpus`, `since`, `until`, `waits_in`",
        help="processes that hold these GPUs and do not return from the kernel",
        shape=shapes.listing(stuck.entry),
        examples=(
            on_node([{"gpus": [3]}]),
            on_node(
                [{"gpus": [0], "since": NOW}],
                name="a process that uses it is blocked in the kernel",
                check="gpu_process_stuck",
                action=Action.REBOOT,
                within=8 * MINUTE,
            ),
            on_node(
                [{"gpus": [0], "since": NOW, "waits_in": "lustre"}],
                name="a process that uses it waits for Lustre",
                check="gpu_process_stuck",
                on=lambda profile: not several(profile),
                within=8 * MINUTE,
            ),
        ),
        without={"page": "is reported by a verdict, after minutes"},
    ),
    SimFault(
        key="idle",
        value="`true`",
        help="no process at any time",
        shape=shapes.flag,
        node=True,
        plan=lambda on, _seed, _gpu: workload.IDLE if on else None,
        examples=(on_node(value=True),),
        without=_LOAD,
    ),
    SimFault(
        key="busy",
        value="`true`",
        help="one process a GPU at all times",
        shape=shapes.flag,
        node=True,
        plan=lambda on, seed, _gpu: workload.busy(seed) if on else None,
        examples=(on_node(value=True),),
        without=_LOAD,
    ),
    _node_fault(
        key="jobs",
        value="list of `start`, `end`, `load`, `memory`, `gpus`, `cgroup`, `pids`, `phases`, `repeat`",
        help="only these jobs",
        shape=shapes.listing(entries.job),
        plan=lambda runs, _seed, gpu: workload.of_jobs(runs, gpu),
        examples=(on_node([{"start": 60, "end": 360, "load": 0.97}]),),
        without=_LOAD,
    ),
    _node_fault(
        key="seed",
        value="number",
        help="another node of the same kind: other uuids, other jobs",
        shape=shapes.whole(0, 2**31),
        examples=(on_node(7),),
        without=dict.fromkeys(USES, "is another node of the same kind"),
    ),
    _node_fault(
        key="driver_version",
        value='`"580.65.06"`',
        help="another driver: other functions, fields and field ids, see below",
        shape=entries.driver_version,
        examples=(on_node("535.183.01"), on_node("580.105.08", profile="a100x8")),
        without={"soak": _READ_AT_START, "truth": "is no fault: see benign.py"},
    ),
    _node_fault(
        key="place",
        value="`host`, `guest`, `container`, `sandbox`",
        help="the system that the agent's children detect when they start, see below",
        shape=shapes.one_of(*PLACES),
        examples=(on_node("container"),),
        without={"page": "decides how many GPUs are expected, and no reading", "soak": _READ_AT_START},
    ),
)
FAULTS: Mapping[str, SimFault] = {fault.key: fault for fault in (*_CALLS, *gpu_faults.ROWS, *_NODE)}
"""In the order in which they are applied."""
