"""TABLE: what happens on healthy nodes all the time, and is no fault. Whatever the agent says of it is false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpumon.arrival import ProbeStarted
from gpumon.health.products import whole
from gpumon.sim.board import Profile
from gpumon.sim.ports import TRAFFIC
from gpumon.sim.profiles import PROFILES
from truth.fault import Disturbance, Step
from truth.measure import scenario
from truth.world import World

MINUTE = 60.0
_BUSY: Mapping[str, Any] = {"busy": True}
_WITHHELD = (0, 1)
"""GPUs that a guest or a container was not given."""
_NOBODY_KNOWS = "is unknown: nobody can tell whether all GPUs of the host were given, and a person is asked to say so."


def _edit(world: World, step: Step, before: Mapping[str, Any] = _BUSY) -> None:
    """At the GPU at which faults happen."""
    gpu = min(1, len(PROFILES[world.profile].bus_ids) - 1)
    world.edit(scenario(before, [(gpu, step)], world.now))


def _well(world: World, before: Mapping[str, Any] = _BUSY) -> None:
    world.edit(scenario(before, [], world.now))


def _for(seconds: float, step: Step) -> Callable[[World], None]:
    """This, for so long."""

    def act(world: World) -> None:
        _edit(world, step)
        world.after(seconds, partial(_well, world))

    return act


def _say(*lines: str, **gpu: Any) -> Callable[[World], None]:
    """What the kernel says; the scenario lasts for a minute."""

    def act(world: World) -> None:
        _for(MINUTE, Step(gpu=gpu))(world)
        gpu_number = min(1, len(PROFILES[world.profile].bus_ids) - 1)
        bus_id = PROFILES[world.profile].bus_ids[gpu_number]
        for line in lines:
            world.say(line.replace("{bus}", bus_id[4:-2].lower()))

    return act


def _xid_once(code: int, text: str) -> Callable[[World], None]:
    """The first time alone: the second one within a day is another story."""
    told: set[int] = set()

    def act(world: World) -> None:
        if id(world) not in told:
            told.add(id(world))
            _say(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}", xids=[code])(world)

    return act


def _stop_and_start(world: World) -> None:
    """An upgrade of the agent: away for ten seconds."""
    world.stop()
    world.host.at += 10.0
    world.start()


def _driver_reload(world: World) -> None:
    """As people do it: release, unload, load, go on."""
    world.release(2 * MINUTE)
    world.after(10.0, partial(world.edit, "driver: not_loaded"))
    world.after(60.0, partial(_well, world, {"idle": True}))


def _driver_upgrade(world: World) -> None:
    """Another version, under the agent's feet: the node is drained, but nobody told the agent."""
    version = "580.173.02" if "999" in world.last_edit else "590.999.01"
    world.edit("driver: not_loaded")
    world.after(30.0, partial(world.edit, f"idle: true\ndriver_version: '{version}'"))


def _step_clock(seconds: float) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.host.stepped += seconds if world.host.stepped == 0 else -world.host.stepped

    return act


def _late(world: World) -> None:
    """Processors are short for two minutes: every child is woken three seconds late."""
    world.host.late = 3.0
    world.after(2 * MINUTE, partial(setattr, world.host, "late", 0.0))


def _probe(world: World) -> None:
    world.edit(scenario({"jobs": [{"start": world.now, "end": world.now + 20, "load": 1.0, "memory": 0.1}]}, [], 0.0))
    world.tell(ProbeStarted(id=f"run-{world.now:.0f}"))
    world.after(MINUTE, partial(_well, world, {"idle": True}))


def _jobs(world: World) -> None:
    """Two minutes of work, and a minute of none."""
    jobs = [{"start": world.now + 180 * n, "end": world.now + 180 * n + 120, "load": 0.97} for n in range(3)]
    world.edit(scenario({"jobs": jobs}, [], 0.0))


def _mig(world: World) -> None:
    """Cut, cut anew, and whole again, on an idle GPU."""
    idle = {"idle": True}
    for seconds, layout in ((0.0, ["3g.40gb", "3g.40gb"]), (90.0, ["1g.10gb"] * 7), (180.0, [])):
        world.after(seconds, partial(_edit, world, Step(gpu={"mig": layout}), idle))
    world.after(270.0, partial(_well, world, idle))


def _late_links(world: World) -> None:
    """After a boot the NVLinks train for a minute, and the fabric with them."""
    world.planned_reboot()
    down = {"gpus": {"*": {"nvlinks": {"*": {"state": "down"}}, "fabric": {"state": 2}}}}
    world.edit(scenario({**_BUSY, **down}, [], 0.0))
    world.after(90.0, partial(_well, world))


def _manager_restarts(world: World) -> None:
    world.edit(scenario({**_BUSY, "services": {"fabric_manager": "stopped"}}, [], 0.0))
    world.after(8.0, partial(_well, world))


def _slow_opening(world: World) -> None:
    """Without persistence mode each GPU takes two seconds to be opened, and the agent starts."""
    scenario_ = {"idle": True, "delay": {"nvmlDeviceGetHandleByPciBusId*": 2.0}}
    world.edit(scenario(scenario_, [], 0.0))
    world.restart()


def _full_disk(world: World) -> None:
    """For two minutes, in which a job runs into its own Xid."""
    world.fill_disk()
    world.after(2 * MINUTE, partial(world.fill_disk, full=False))


def _given_away(world: World) -> None:
    """To a virtual machine: released first, and back after a while."""
    world.release(MINUTE)
    world.after(15.0, partial(_edit, world, Step(gpu={"bound": "vfio-pci"}), {"idle": True}))
    world.after(5 * MINUTE, partial(_well, world, {"idle": True}))


def _reload(world: World) -> None:
    world.reload(log={"level": "warning"})


def _given(place: str, **withheld: Any) -> Mapping[str, Any]:
    """Two of the GPUs are not ours."""
    return {**_BUSY, "place": place, "gpus": dict.fromkeys(_WITHHELD, withheld)}


def _neighbour_fails(world: World) -> None:
    bus_id = PROFILES[world.profile].bus_ids[_WITHHELD[0]]
    world.say(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 79, GPU has fallen off the bus.")


def _divided(profile: Profile) -> bool:
    """So many GPUs that some are left."""
    return len(profile.bus_ids) > len(_WITHHELD)


def _is_part(profile: Profile) -> bool:
    """No host of the kind has as many GPUs as are left."""
    left = len(profile.bus_ids) - len(_WITHHELD)
    return whole(profile.board.product, left) not in {None, left}


def _has_mig(profile: Profile) -> bool:
    return bool(profile.board.mig_profiles) and not profile.mig and "H100 80GB" in profile.board.product


def _linked(profile: Profile) -> bool:
    return bool(profile.board.links) and profile.links_active and not profile.mig


def _managed(profile: Profile) -> bool:
    return "fabric_manager" in profile.services


def _several(profile: Profile) -> bool:
    return len(profile.bus_ids) > 1


def _is(*names: str) -> Callable[[Profile], bool]:
    return lambda profile: profile.name in names


_CAPPED = {"clock_events": 0x4, "sm_clock": 1600, "sw_power_cap_seconds": {"value": 0, "rate": 0.9, "from": 0}}
_RECOVERED = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"

DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance(name="nothing at all: jobs come and go as they do", before={}),
    Disturbance(name="nothing at all: nobody works", before={"idle": True}),
    Disturbance(name="a planned reboot", act=World.planned_reboot, every=20 * MINUTE),
    Disturbance(name="a boot whose links train late", act=_late_links, every=20 * MINUTE, on=_linked),
    Disturbance(name="the driver is unloaded and loaded, with a release", act=_driver_reload, before={"idle": True}),
    Disturbance(
        name="the driver is upgraded within 30 seconds, without a release", act=_driver_upgrade, before={"idle": True}
    ),
    Disturbance(name="MIG is turned on, changed and turned off", act=_mig, before={"idle": True}, on=_has_mig),
    Disturbance(
        name="PCIe of an idle GPU slows down",
        act=_for(5 * MINUTE, Step(gpu={"set": {"pcie_generation": 1}})),
        before={"idle": True},
    ),
    Disturbance(
        name="NVLinks of an idle GPU sleep",
        act=_for(5 * MINUTE, Step(gpu={"nvlinks": {"*": {"state": "sleep"}}})),
        before={"idle": True},
        on=_linked,
    ),
    Disturbance(name="a release of the node for two minutes", act=lambda world: world.release(2 * MINUTE)),
    Disturbance(name="the agent is upgraded", act=_stop_and_start),
    Disturbance(name="the agent is killed with SIGKILL", act=World.restart),
    Disturbance(name="the clock is stepped forward by an hour, and back", act=_step_clock(3600.0)),
    Disturbance(name="the clock is stepped back by ten minutes, and forward", act=_step_clock(-600.0)),
    Disturbance(name="the daemon is stopped for a minute", act=lambda world: world.pause(60.0)),
    Disturbance(name="the host sleeps for ten minutes", act=lambda world: world.host.suspend(600.0)),
    Disturbance(name="processors are short for two minutes", act=_late),
    Disturbance(name="jobs start and stop", act=_jobs),
    Disturbance(
        name="the power limit holds the load back",
        before={**_BUSY, "gpus": {"*": {"set": _CAPPED}}},
        on=lambda profile: not profile.mig,
    ),
    Disturbance(
        name="a corrected ECC error a minute",
        act=_for(8 * MINUTE, Step(gpu={"ecc": {"corrected_dram": {"value": 40, "rate": 1 / 60, "from": "now"}}})),
        on=lambda profile: not profile.mig,
    ),
    Disturbance(name="one lone Xid 45", act=_xid_once(45, "Preemptive Channel Removal")),
    Disturbance(
        name="an application's Xid 13",
        act=_xid_once(13, "Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): Illegal Address"),
    ),
    Disturbance(
        name="an application's Xid 31",
        act=_xid_once(31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f54_1a000000"),
    ),
    Disturbance(name="Xid 43: a channel was reset", act=_xid_once(43, "Reset Channel Verif Error")),
    Disturbance(name="Xid 154: nothing more to recover from", act=_xid_once(154, _RECOVERED)),
    Disturbance(
        name="Xid 63: a row is recorded for remapping, and needs none",
        act=_xid_once(63, "Row Remapper: New row marked for remapping"),
    ),
    Disturbance(
        name="persistence mode is off, and GPUs open slowly",
        act=_slow_opening,
        before={"idle": True},
        every=20 * MINUTE,
    ),
    Disturbance(name="the fabric manager is restarted", act=_manager_restarts, every=15 * MINUTE, on=_managed),
    Disturbance(
        name="a port that was never cabled",
        before={**_BUSY, "ports": {"mlx5_3": {"state": "down", "counters": dict.fromkeys(TRAFFIC, 0)}}},
        on=lambda profile: profile.ports is not None and profile.ports.count > 3,
    ),
    Disturbance(name="a guest with a part of a board, and its operator says so", on=_is("h100guestx2")),
    Disturbance(
        name="a guest that was given some of the GPUs",
        before=_given("guest", absent=True),
        on=lambda profile: _divided(profile) and _is_part(profile),
        says={"gpu_count": _NOBODY_KNOWS},
    ),
    Disturbance(
        name="a guest that was given some of the GPUs, as many as a host may have",
        before=_given("guest", absent=True),
        on=lambda profile: _divided(profile) and not _is_part(profile),
    ),
    Disturbance(
        name="a container that was given some of the GPUs",
        before=_given("container", uncounted=True),
        act=_stop_and_start,
        on=_divided,
        says={"gpu_count": _NOBODY_KNOWS},
    ),
    Disturbance(
        name="a container beside a GPU that fails, and was not given to it",
        before=_given("container", uncounted=True),
        act=_neighbour_fails,
        on=_divided,
        says={"gpu_count": _NOBODY_KNOWS},
    ),
    Disturbance(
        name="a GPU is given to a virtual machine, with a release",
        act=_given_away,
        before={"idle": True},
        on=lambda profile: _several(profile) and not profile.guest,
        every=15 * MINUTE,
    ),
    Disturbance(name="a GPU that the configuration excludes", settings={"gpus": {"exclude": ["0"]}}, on=_several),
    Disturbance(name="the store's disk is full for two minutes", act=_full_disk),
    Disturbance(name="the configuration is reloaded", act=_reload),
    Disturbance(name="the probe runs", act=_probe, before={"idle": True}),
    Disturbance(name="the agent is not root", before={**_BUSY, "root": False}),
    Disturbance(
        name="a part of the GPUs works, others wait", before={"jobs": [{"load": 0.95, "gpus": [0]}]}, on=_several
    ),
)
