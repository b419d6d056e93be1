"""TABLE: events of healthy nodes that are no faults. Each verdict about them is false, unless the row expects it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpumon_sim.board import Profile
from gpumon_sim.faults.allreduce import SCHEDULED, can_run
from gpumon_sim.faults.conditions import has_fabric_manager, has_nvlinks, has_ports, several, whole
from gpumon_sim.faults.ports import SILENT
from gpumon_sim.faults.row import BUSY, IDLE, PORT, ScenarioStep

from benchmarks.truth import acts, benign_jobs, ranks
from benchmarks.truth.acts import MINUTE, WITHHELD
from benchmarks.truth.rows import Disturbance
from benchmarks.truth.world import World
from gpumon.health.products import board_size

_UNWIRED = {"mlx5_3": SILENT}
_COUNT_UNKNOWN = (
    "is unknown: the agent cannot determine whether the guest or container has all GPUs of the host; "
    "the operator is asked to configure their number."
)


def _withheld_gpus(place: str, **withheld: Any) -> Mapping[str, Any]:
    """Return the scenario of a guest or container without two of the GPUs."""
    return {**BUSY, "place": place, "gpus": dict.fromkeys(WITHHELD, withheld)}


def _has_gpus_left(profile: Profile) -> bool:
    """Return whether GPUs are left after two are withheld."""
    return len(profile.bus_ids) > len(WITHHELD)


def _is_part(profile: Profile) -> bool:
    """Return whether no host of this product has the number of GPUs that are left."""
    left = len(profile.bus_ids) - len(WITHHELD)
    return board_size(profile.board.product, left) not in {None, left}


def _has_mig(profile: Profile) -> bool:
    return bool(profile.board.mig_profiles) and not profile.mig and "H100 80GB" in profile.board.product


def _many_ports(profile: Profile) -> bool:
    """Return whether there are enough ports for one to be uncabled."""
    return profile.ports is not None and profile.ports.count > 3


_CAPPED = {"clock_events": 0x4, "sm_clock": 1600, "sw_power_cap_seconds": {"value": 0, "rate": 0.9, "from": 0}}
_LOCKED = {"clock_events": 0x2, "sm_clock": 1200, "graphics_clock": 1200}
_RECOVERED = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"

DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance(name="none: jobs start and end", before={}),
    Disturbance(name="none: the node is idle", before=IDLE),
    Disturbance(name="a planned reboot", act=World.planned_reboot, every=20 * MINUTE),
    Disturbance(name="a boot whose links train late", act=acts.late_links, every=20 * MINUTE, on=has_nvlinks),
    Disturbance(name="the driver is unloaded and loaded, with a release", act=acts.driver_reload, before=IDLE),
    Disturbance(
        name="the driver is upgraded within 30 seconds, without a release",
        act=acts.driver_upgrade,
        before=IDLE,
    ),
    Disturbance(name="MIG is turned on, changed and turned off", act=acts.mig, before=IDLE, on=_has_mig),
    Disturbance(
        name="PCIe of an idle GPU slows down",
        act=acts.for_a_while(5 * MINUTE, ScenarioStep(gpu={"set": {"pcie_generation": 1}})),
        before=IDLE,
    ),
    Disturbance(
        name="PCIe of an idle GPU gets narrower",
        act=acts.for_a_while(5 * MINUTE, ScenarioStep(gpu={"set": {"pcie_width": 8}})),
        before=IDLE,
    ),
    Disturbance(
        name="light inference on GPUs without GPM",
        before={**BUSY, "gpus": {"*": {"set": {"utilization": 98, "memory_utilization": 12, "power": 24}}}},
        on=lambda profile: not profile.board.gpm and not profile.mig,
    ),
    Disturbance(
        name="cool boards that report a negative thermal margin",
        before={"idle": True, "gpus": {"*": {"set": {"margin": -5}}}},
        on=lambda profile: profile.board.thermal_limits is not None,
    ),
    Disturbance(
        name="slots of eight lanes",
        before={**BUSY, "gpus": {"*": {"set": {"slot_width": 8}}}},
        on=lambda profile: not profile.guest,  # a guest does not see the slot: one warning, which can be accepted
    ),
    Disturbance(
        name="NVLinks of an idle GPU sleep",
        act=acts.for_a_while(5 * MINUTE, ScenarioStep(gpu={"nvlinks": {"*": {"state": "sleep"}}})),
        before=IDLE,
        on=has_nvlinks,
    ),
    Disturbance(name="a release of the node for two minutes", act=lambda world: world.release(2 * MINUTE)),
    Disturbance(name="the agent is upgraded", act=acts.stop_and_start),
    Disturbance(name="the agent is killed with SIGKILL", act=World.restart),
    Disturbance(name="the clock is stepped forward by an hour, and back", act=acts.step_clock(3600.0)),
    Disturbance(name="the clock is stepped back by ten minutes, and forward", act=acts.step_clock(-600.0)),
    Disturbance(name="the daemon is stopped for a minute", act=lambda world: world.pause(60.0)),
    Disturbance(name="the host sleeps for ten minutes", act=lambda world: world.host.suspend(600.0)),
    Disturbance(name="CPU starvation for two minutes", act=acts.late),
    Disturbance(name="jobs start and stop", act=acts.jobs),
    Disturbance(
        name="the power limit reduces the clocks",
        before={**BUSY, "gpus": {"*": {"set": _CAPPED}}},
        on=whole,
    ),
    *(
        Disturbance(
            name=name,
            before={**BUSY, "gpus": {"*": {"power_brake": {"seconds": seconds, "every": every}}}},
            on=lambda profile: profile.board.gpm and not profile.mig,
        )
        for name, seconds, every in (
            ("a power brake of 5 ms each half minute, which only its counter shows", 0.005, 30),
            ("a power brake of a second every 40 seconds, in single polls", 1.0, 40),
        )
    ),
    Disturbance(
        name="a corrected ECC error a minute",
        act=acts.for_a_while(
            8 * MINUTE, ScenarioStep(gpu={"ecc": {"corrected_dram": {"value": 40, "rate": 1 / 60, "from": "now"}}})
        ),
        on=whole,
    ),
    Disturbance(
        name="a non-fatal PCIe error each half hour, which may have been corrected",
        before={**BUSY, "gpus": {"*": {"pcie_errors": {"non_fatal": {"value": 0, "rate": 1 / 1800, "from": 0}}}}},
        on=lambda profile: profile.board.gpm and not profile.guest,
    ),
    Disturbance(name="a single Xid 45", act=acts.xid_once(45, "Preemptive Channel Removal")),
    Disturbance(
        name="an application's Xid 13",
        act=acts.xid_once(13, "Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): Illegal Address"),
    ),
    Disturbance(
        name="an application's Xid 31",
        act=acts.xid_once(31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f54_1a000000"),
    ),
    Disturbance(name="Xid 43: a channel was reset", act=acts.xid_once(43, "Reset Channel Verif Error")),
    Disturbance(name="Xid 154: no recovery is needed any more", act=acts.xid_once(154, _RECOVERED)),
    Disturbance(
        name="Xid 63: a row is recorded for remapping, no action is needed",
        act=acts.xid_once(63, "Row Remapper: New row marked for remapping"),
    ),
    Disturbance(
        name="persistence mode is off, and GPUs open slowly",
        act=acts.slow_opening,
        before=IDLE,
        every=20 * MINUTE,
    ),
    Disturbance(
        name="the fabric manager is restarted",
        act=acts.node_for(8.0, services={"fabric_manager": "stopped"}),
        every=15 * MINUTE,
        on=has_fabric_manager,
    ),
    Disturbance(
        name="the fabric manager is upgraded",
        act=acts.node_for(45.0, services={"fabric_manager": "stopped"}),
        every=15 * MINUTE,
        on=has_fabric_manager,
    ),
    Disturbance(
        name="a port that was never cabled",
        before={**BUSY, "ports": _UNWIRED},
        on=_many_ports,
    ),
    Disturbance(
        name="a host with a port that was never cabled reboots",
        act=World.planned_reboot,
        before={**BUSY, "ports": _UNWIRED},
        on=_many_ports,
        every=20 * MINUTE,
    ),
    Disturbance(
        name="an adapter is replaced, and the old one put back", act=acts.replace_card, on=has_ports, every=20 * MINUTE
    ),
    Disturbance(name="an adapter is taken out, and accepted", act=acts.take_card_out, on=has_ports, every=20 * MINUTE),
    Disturbance(
        name="a guest with part of a board, configured as such", on=lambda profile: profile.name == "h100guestx2"
    ),
    Disturbance(
        name="a guest that was given some of the GPUs",
        before=_withheld_gpus("guest", absent=True),
        on=lambda profile: _has_gpus_left(profile) and _is_part(profile),
        expected_verdicts={"gpu_count_mismatch": _COUNT_UNKNOWN},
    ),
    Disturbance(
        name="a guest that was given some of the GPUs, as many as a host may have",
        before=_withheld_gpus("guest", absent=True),
        on=lambda profile: _has_gpus_left(profile) and not _is_part(profile),
    ),
    Disturbance(
        name="a container that was given some of the GPUs",
        before=_withheld_gpus("container", uncounted=True),
        act=acts.stop_and_start,
        on=_has_gpus_left,
        expected_verdicts={"gpu_count_mismatch": _COUNT_UNKNOWN},
    ),
    Disturbance(
        name="a container beside a GPU that fails, and was not given to it",
        before=_withheld_gpus("container", uncounted=True),
        act=acts.neighbour_fails,
        on=_has_gpus_left,
        expected_verdicts={"gpu_count_mismatch": _COUNT_UNKNOWN},
    ),
    Disturbance(
        name="a GPU is given to a virtual machine, with a release",
        act=acts.given_away,
        before=IDLE,
        on=lambda profile: several(profile) and not profile.guest,
        every=15 * MINUTE,
    ),
    Disturbance(name="a GPU that the configuration excludes", settings={"gpus": {"exclude": ["0"]}}, on=several),
    Disturbance(name="the store's disk is full for two minutes", act=acts.full_disk),
    Disturbance(name="the configuration is reloaded", act=acts.reload),
    Disturbance(name="the probe runs", act=acts.probe, before=IDLE),
    Disturbance(
        name="runs of the all-reduce are skipped in each period: the node is busy",
        act=acts.all_reduce(ranks.HEALTHY),
        every=MINUTE,
        on=can_run,
        settings=SCHEDULED,
    ),
    Disturbance(
        name="a run of the all-reduce is skipped: the node is held for a job",
        act=acts.held,
        before=IDLE,
        on=can_run,
        settings=SCHEDULED,
    ),
    Disturbance(
        name="an all-reduce is slow once, and its repeat is not",
        act=acts.all_reduce(ranks.UNCONFIRMED),
        before=IDLE,
        on=can_run,
    ),
    Disturbance(name="an all-reduce is aborted for a job", act=acts.all_reduce(ranks.ABORTED), before=IDLE, on=can_run),
    Disturbance(
        name="an all-reduce fails once, and the next one does not",
        act=acts.all_reduce(ranks.BROKEN, ranks.HEALTHY),
        before=IDLE,
        on=can_run,
    ),
    Disturbance(
        name="the driver is upgraded, and the all-reduce moves less than before",
        act=acts.all_reduce_upgraded,
        before=IDLE,
        on=can_run,
    ),
    Disturbance(name="the agent is not root", before={**BUSY, "root": False}),
    Disturbance(
        name="persistence mode is off for five minutes",
        act=acts.for_a_while(5 * MINUTE, ScenarioStep(gpu={"set": {"persistence_mode": 0}})),
    ),
    Disturbance(name="a GPU is reset, with a release", act=acts.reset, before=IDLE),
    Disturbance(
        name="a GPU is reset, with a release, and the NVSwitch reports its links",
        act=acts.reset_behind_switch,
        before=IDLE,
        on=lambda profile: has_nvlinks(profile) and bool(profile.switches),
    ),
    Disturbance(
        name="the NVSwitches report that their links are trained",
        act=acts.links_train,
        on=lambda profile: bool(profile.switches),
    ),
    Disturbance(
        name="a container runs the fabric manager, and the host's unit is stopped",
        before={"busy": True, "services": {"fabric_manager": "container"}},
        on=lambda profile: "fabric_manager" in profile.services,
    ),
    Disturbance(
        name="MIG is turned on on half of the GPUs",
        act=acts.mig_on_half,
        on=lambda profile: _has_mig(profile) and several(profile),
    ),
    Disturbance(
        name="the driver is upgraded by a reboot",
        act=acts.upgrade_by_reboot,
        before=IDLE,
        every=20 * MINUTE,
    ),
    Disturbance(
        name="the driver is loaded four minutes after a boot",
        act=acts.driver_late,
        before=IDLE,
        every=20 * MINUTE,
    ),
    Disturbance(name="a boot with the clock in 1970, until NTP corrects it", act=acts.no_clock, every=20 * MINUTE),
    Disturbance(name="the agent and its children are frozen for ten minutes", act=acts.freeze, every=20 * MINUTE),
    Disturbance(name="an operator locks the clocks", before={**BUSY, "gpus": {"*": {"set": _LOCKED}}}, on=whole),
    Disturbance(name="ECC is turned off, and the node rebooted", act=acts.ecc_off, every=20 * MINUTE, on=whole),
    Disturbance(
        name="an InfiniBand switch is rebooted",
        act=acts.node_for(3 * MINUTE, ports={PORT: {"state": "down", "counters": {"link_downed": 1}}}),
        every=60 * MINUTE,
        on=has_ports,
        expected_verdicts={
            "ib_fatal_counter": "warns: a link that carried traffic went down outside of a maintenance window."
        },
    ),
    Disturbance(
        name="the driver of the network adapters is restarted", act=acts.ports_restart, every=20 * MINUTE, on=has_ports
    ),
    Disturbance(
        name="the firmware of a network adapter is upgraded",
        act=acts.node_for(5 * MINUTE, ports={PORT: {"absent": True}}),
        every=20 * MINUTE,
        on=has_ports,
    ),
    Disturbance(
        name="functions of the fabric manager, whose counters may not be read, go down with it",
        before={**BUSY, "nics": ["limited_pf"]},
        act=acts.node_for(9 * MINUTE, nics=["limited_pf"], ports={"mlx5_20": {"state": "down"}}),
        every=20 * MINUTE,
        on=has_ports,
    ),
    Disturbance(
        name="a cloud removes the virtual function of accelerated networking",
        before={**BUSY, "nics": ["azure_vf"]},
        act=acts.node_for(9 * MINUTE, nics=["azure_vf"], ports={"mlx5_an0": {"absent": True}}),
        every=20 * MINUTE,
        on=has_ports,
        expected_verdicts={"ib_device_missing": "warns: an adapter that is not of the fabric is gone."},
    ),
    Disturbance(name="a job is killed: Xid 45 of each GPU", act=acts.killed_job, every=20 * MINUTE),
    Disturbance(
        name="driver calls take a second for two minutes: nvidia-bug-report.sh",
        act=acts.node_for(2 * MINUTE, delay={"nvmlDeviceGet*": 1.0}),
    ),
    Disturbance(
        name="a power brake for half a minute",
        act=acts.for_a_while(
            30.0, ScenarioStep(gpu={"set": {"clock_events": 0x88, "sm_clock": 900, "graphics_clock": 900}})
        ),
    ),
    Disturbance(
        name="a profiler uses the performance counters of a GPU",
        act=acts.for_a_while(5 * MINUTE, ScenarioStep(gpu={"gpm": {"*": None}})),
        on=lambda profile: profile.board.gpm,
    ),
    Disturbance(name="some GPUs are busy, others are idle", before={"jobs": [{"load": 0.95, "gpus": [0]}]}, on=several),
    *benign_jobs.DISTURBANCES,
)
