"""CHECKS: the NVLink fabric with its services, NVSwitches and the registration of GPUs, and chip-to-chip links."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, Paging, XidCause
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import COUNT, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import NODE, PASSED, Action, Finding, Level, fail, warn
from gpumon.health.xid_texts import recovery_of, request_finding
from gpumon.model.nvlink import COMPLETED, HEALTHY, LIMITED, PEERS, STATES, SUMMARIES, Fabric
from gpumon.model.snapshot import GUEST

STOPS = SampleWindow("gpumon_service_stops_total", 10 * MINUTE)
STOP_COUNT = Limit(
    "fabric_manager_stops",
    3,
    "Minimum number of exits of the fabric manager in ten minutes that raises a verdict.",
    COUNT,
)

_SWITCH = PEERS[2]
_CHECKS = {
    "degraded_bandwidth": "its bandwidth is degraded",
    "route_recovery": "routes are being recovered",
    "route_unhealthy": "a route is unhealthy",
    "access_timeout_recovery": "it is recovering from an access timeout",
    "incorrect_configuration": "its configuration is wrong",
    "partition_assigned": "the GPU is not in a partition",
    "fabric_manager_connected": "the fabric manager has no connection to it",
}
_LIMITED = frozenset({"degraded_bandwidth", "route_recovery", "access_timeout_recovery"})
"""Keys of _CHECKS for conditions under which jobs still run (nvml.h, k8s-test-infra)."""


def manager_down(facts: Facts) -> Finding | None:
    """Return a failure if the fabric manager is stopped and a GPU needs it: in a rack it runs on the switch trays."""
    if _runs_on_the_host(facts):
        return PASSED
    if not _are_services_expected(facts):
        return None
    if facts.node.fabric_manager_up is None:
        # A fabric manager that ran in a container is no longer reported after a restart of the agent.
        return None if ("fabric_manager_down", NODE) in facts.open else _absent_service(facts)
    if facts.node.fabric_manager_up or not _has_nvswitches(facts):
        return PASSED
    return fail("The fabric manager is installed but not running: GPUs cannot join the NVLink fabric.", Action.RESTART)


def manager_flapping(facts: Facts) -> Finding | None:
    limit = facts.threshold(STOP_COUNT)
    if facts.node.fabric_manager_up is None:
        return None
    if _runs_on_the_host(facts):
        return PASSED
    stops = sum(growth.gain for growth in facts.growth(STOPS) if growth.labels.get("service") == "fabric_manager")
    if stops < limit or not _has_nvswitches(facts):
        return PASSED
    return warn(f"The fabric manager exited {stops:.0f} times in ten minutes.", Action.FIX, stops=stops)


def registration(gpu: GpuCase) -> Finding | None:
    """Return a finding on an incomplete or unhealthy registration with the fabric. In state 0 a GPU is in no fabric."""
    fabric = gpu.state.fabric
    if fabric is None or fabric.state is None or not _are_services_expected(gpu.facts):
        return None
    if not fabric.state:
        return PASSED
    if fabric.state != COMPLETED:
        return _incomplete_finding(fabric.state, gpu.facts)
    if fabric.status:
        reason = f"Its registration with the NVLink fabric failed with NVML code {fabric.status:.0f}."
        return fail(reason, Action.RESET, fabric_status=fabric.status)
    return _health(fabric)


def _incomplete_finding(state: float, facts: Facts) -> Finding:
    """Return the finding of an incomplete registration. With FABRIC_MODE=1 it waits for an active partition."""
    reason = f"Its registration with the NVLink fabric {STATES.get(int(state), f'has state {state:.0f}')}"
    states = [None if other.fabric is None else other.fabric.state for other in facts.gpus]
    none_completes = all(other in STATES for other in states if other != 0)  # 0: without a fabric; None: not read
    if none_completes or facts.node.fabric_manager_up == 0:
        return fail(f"{reason}{', as that of all GPUs' if none_completes else ''}.", Action.RESET, fabric_state=state)
    return warn(f"{reason}; with FABRIC_MODE=1 it completes with a partition.", Action.FIX, fabric_state=state)


def _health(fabric: Fabric) -> Finding:
    """Return the finding on a completed registration. The driver's summary counts only if no single check failed."""
    failed = sorted(check for check, value in (fabric.health or {}).items() if value)
    if failed:
        words = "; ".join(_CHECKS.get(check, check) for check in failed)
        make, action = (warn, Action.INSPECT) if _LIMITED.issuperset(failed) else (fail, Action.RESET)
        return make(f"The NVLink fabric is impaired at this GPU: {words}.", action, checks=", ".join(failed))
    summary = fabric.health_summary
    if summary is None or summary == HEALTHY:
        return PASSED
    words = SUMMARIES.get(int(summary), f"in state {summary:.0f}")
    reason = f"The driver reports the NVLink fabric at this GPU as {words}, without a reason."
    if summary == LIMITED:
        return warn(reason, Action.INSPECT, health_summary=summary)
    return fail(reason, Action.RESET, health_summary=summary)


def imex_recovery(facts: Facts) -> Finding | None:
    """Return a warning if the driver requests a recovery of the IMEX domain, which it does on all GPUs of the node."""
    numbers = [gpu.recovery_action for gpu in (state.gpu for state in facts.gpus) if gpu is not None]
    reported = [number for number in numbers if number is not None]
    if not reported:
        return None
    return next((request_finding(number) for number in reported if recovery_of(number).of_node), PASSED)


def imex_down(facts: Facts) -> Finding | None:
    """Return a warning if the IMEX daemon is stopped and a GPU is in a multi-node fabric. One that waits is running."""
    if not _are_services_expected(facts):
        return None
    if facts.node.imex_up is None:
        return _absent_service(facts)
    if facts.node.imex_up or not any(state.fabric and state.fabric.cluster_uuid for state in facts.gpus):
        return PASSED
    return warn("The IMEX daemon is not running: GPUs cannot share memory with those of other nodes.", Action.RESTART)


def c2c_down(gpu: GpuCase) -> Finding | None:
    links = gpu.state.c2c_links
    states = {link: link_state.up for link, link_state in links.items() if link_state.up is not None}
    if not states:
        return None
    down = [link for link, up in states.items() if not up]
    if not down:
        return PASSED
    reason = f"Chip-to-chip link {', '.join(down)} between CPU and GPU is down ({len(down)} of {len(states)})."
    return fail(reason, Action.REBOOT, c2c_links_down=len(down), c2c_links=len(states))


def _absent_service(facts: Facts) -> Finding | None:
    """Return PASSED if other services can be read: the unit of this one was removed or disabled."""
    readable = facts.contained is not None and "links" not in facts.notices
    return PASSED if readable else None


def _runs_on_the_host(facts: Facts) -> bool:
    """Return whether this is a guest whose fabric manager runs on its host.

    If the guest was given the NVSwitches too, as in most clouds, the fabric manager runs in the guest. From Blackwell
    on, NVSwitches are not on the PCI bus: the fabric manager reaches them through restricted ports of network adapters.
    """
    has_switches = facts.nvswitches or any(port.restricted for port in facts.ports)
    return facts.expectation.place == GUEST and not has_switches


def _has_nvswitches(facts: Facts) -> bool:
    """Return whether a GPU needs the fabric manager of this host. In a multi-node fabric it runs on switch trays."""
    if any(state.fabric and state.fabric.cluster_uuid and state.fabric.state == COMPLETED for state in facts.gpus):
        return False
    return any(
        (state.fabric is not None and state.fabric.state)
        or any(peer.peer_type == _SWITCH for peer in state.peers.values())
        for state in facts.gpus
    )


def _are_services_expected(facts: Facts) -> bool:
    return facts.node.nvml_up != 0 and not any(state.released for state in facts.gpus)


CHECKS: tuple[Check, ...] = (
    Check(
        name="fabric_manager_down",
        pages=Paging.NIGHT,
        help="The fabric manager is not running, and GPUs are connected by NVSwitches.",
        steps="""\
1. `systemctl status nvidia-fabricmanager` and `journalctl -u nvidia-fabricmanager`: why did it exit?
2. Its version must equal the driver's: update both together.
3. Restart it when the node is idle. GPUs that do not complete their registration then need a reset.
4. On boards without NVSwitches, disable the check (`health.disabled_checks`).
""",
        node=manager_down,
        after=MINUTE,  # an upgrade stops it for a while
        grace=True,
        inhibited_by={"gpu_driver_down": "node"},
    ),
    Check(
        name="fabric_manager_flapping",
        levels=(Level.WARN,),
        help="The fabric manager exits repeatedly.",
        steps="""\
1. `journalctl -u nvidia-fabricmanager`: what is its last message?
2. Its version must equal the driver's. A failing NVSwitch (SXid in the kernel log) also makes it exit.
""",
        node=manager_flapping,
        windows=(STOPS,),
        counts_causes=True,
        limits=(STOP_COUNT,),
        inhibited_by={"fabric_manager_down": "node", "nvswitch_error": "node"},
    ),
    Check(
        name="fabric_unhealthy",
        levels=(Level.WARN, Level.FAIL),
        help="The GPU is not a healthy member of the NVLink fabric.",
        steps="""\
1. `nvidia-smi -q -d FABRIC` shows state, status and health.
2. Check the log of the fabric manager, on a rack that of the NVLink switches.
3. Drain the node and reset the GPU. If the fault remains: restart the fabric manager, then reboot the node.
""",
        gpu=registration,
        after=5 * MINUTE,
        grace=True,
        inhibited_by={
            "fabric_manager_down": "node",
            "fabric_manager_flapping": "node",
            "nvswitch_error": "node",
            "gpu_lost": "any",
            "gpu_missing": "any",
        },
    ),
    Check(
        name="imex_recovery_requested",
        levels=(Level.WARN,),
        help="The IMEX daemon ended while nodes shared GPU memory; no GPU is at fault.",
        steps="""\
1. `journalctl -u nvidia-imex` and `journalctl -k | grep -i imex`: why did the daemon end?
2. `systemctl restart nvidia-imex`, and end the jobs of the IMEX domain: their shared memory is lost.
3. The driver clears its request once the daemon is back. Do not drain or reset GPUs for it.
""",
        node=imex_recovery,
        after=MINUTE,
        inhibited_by={"gpu_driver_down": "node"},
    ),
    Check(
        name="imex_unhealthy",
        levels=(Level.WARN,),
        help="The IMEX daemon is not running, and the GPUs are in a multi-node fabric.",
        steps="""\
1. `systemctl status nvidia-imex` and `/var/log/nvidia-imex.log`; `nvidia-imex-ctl -N` shows its domain.
2. /etc/nvidia-imex/nodes_config.cfg and the version must be equal on all nodes. Restart it on all of them.
3. Jobs within this node do not need it. If it runs in pods, disable the unit: the verdict then clears.
""",
        node=imex_down,
        after=10 * MINUTE,
        grace=True,
        inhibited_by={"gpu_driver_down": "node", "imex_recovery_requested": "node"},
    ),
    Check(
        name="c2c_link_down",
        help="A chip-to-chip link between a Grace CPU and its GPU is down.",
        steps="""\
1. `nvidia-smi c2c -s`, and Xids 121 and 173 in the kernel log.
2. Drain and reboot the node: these links are trained only at boot.
3. If the link stays down, replace the module.
""",
        gpu=c2c_down,
        after=2 * MINUTE,
        grace=True,
        inhibited_by={"gpu_lost": "same", "gpu_xid_critical": XidCause("same", frozenset({121, 173}))},
    ),
)
