"""Actions of operators and programs on a healthy node. Each action also schedules its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpumon_sim.faults.links import SWITCH_LINK_DOWN
from gpumon_sim.faults.row import BUSY, PORT, ScenarioStep
from gpumon_sim.profiles import PROFILES

from benchmarks.truth import ranks
from benchmarks.truth.measure import scenario, target
from benchmarks.truth.world import World
from gpumon.model.time_window import WindowKind, in_force
from gpumon.state.messages import ProbeStarted

MINUTE = 60.0
WITHHELD = (0, 1)
"""GPUs that a guest or a container was not given."""


def edit(world: World, step: ScenarioStep, before: Mapping[str, Any] = BUSY) -> None:
    """Apply a step to the GPU that has the faults."""
    world.edit(scenario(before, [(target(world.profile), step)], world.now))


def recover(world: World, before: Mapping[str, Any] = BUSY) -> None:
    world.edit(scenario(before, [], world.now))


def for_a_while(seconds: float, step: ScenarioStep) -> Callable[[World], None]:
    """Return an action that applies a step for this time."""

    def act(world: World) -> None:
        edit(world, step)
        world.after(seconds, partial(recover, world))

    return act


def log_kernel_lines(*lines: str, **gpu: Any) -> Callable[[World], None]:
    """Return an action that writes lines to the kernel log and sets a scenario of the GPU for a minute."""

    def act(world: World) -> None:
        for_a_while(MINUTE, ScenarioStep(gpu=gpu))(world)
        bus_id = PROFILES[world.profile].bus_ids[target(world.profile)]
        for line in lines:
            world.log_kernel_line(line.replace("{bus}", bus_id[4:-2].lower()))

    return act


def xid_once(code: int, text: str) -> Callable[[World], None]:
    """Return an action that logs the Xid only once, because a second one within a day raises a verdict."""
    done: set[int] = set()

    def act(world: World) -> None:
        if id(world) not in done:
            done.add(id(world))
            log_kernel_lines(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}", xids=[code])(world)

    return act


def stop_and_start(world: World) -> None:
    """Upgrade the agent: it is stopped for ten seconds."""
    world.stop()
    world.host.at += 10.0
    world.start()


def driver_reload(world: World) -> None:
    """Release the node, unload the driver, and load it again."""
    world.release(2 * MINUTE)
    world.after(10.0, partial(world.edit, "driver: not_loaded"))
    world.after(60.0, partial(recover, world, {"idle": True}))


def driver_upgrade(world: World) -> None:
    """Change the driver version on a drained node without a release."""
    after = _other_driver(world)
    world.edit("driver: not_loaded")
    world.after(30.0, partial(world.edit, after))


def _other_driver(world: World) -> str:
    """Return the scenario of the other of two driver versions."""
    version = "580.173.02" if "999" in world.last_edit else "590.999.01"
    return f"idle: true\ndriver_version: '{version}'"


def step_clock(seconds: float) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.host.stepped += seconds if world.host.stepped == 0 else -world.host.stepped

    return act


def late(world: World) -> None:
    """Starve the CPUs for two minutes: each child is resumed three seconds late."""
    world.host.late = 3.0
    world.after(2 * MINUTE, partial(setattr, world.host, "late", 0.0))


def probe(world: World) -> None:
    world.edit(scenario({"jobs": [{"start": world.now, "end": world.now + 20, "load": 1.0, "memory": 0.1}]}, [], 0.0))
    world.deliver(ProbeStarted(id=f"run-{world.now:.0f}"))
    world.after(MINUTE, partial(recover, world, {"idle": True}))


def all_reduce(*behaviours: ranks.RankBehaviour) -> Callable[[World], None]:
    """Return an action with runs, a minute apart, on a host with a baseline."""

    def act(world: World) -> None:
        if not world.report.probe.good:
            ranks.record_good_runs(world)
        for number, behaviour in enumerate(behaviours):
            world.after(5.0 + number * MINUTE, partial(ranks.run(behaviour), world))

    return act


def held(world: World) -> None:
    """Hold the node for a job; the run that is due meanwhile is skipped, and no other is due."""
    if not in_force(world.report.windows, WindowKind.HOLD):
        ranks.record_good_runs(world)
        world.hold(24 * 60 * MINUTE)
        world.after(5.0, partial(ranks.run(), world))


def all_reduce_upgraded(world: World) -> None:
    """Upgrade to a driver with less bandwidth, within published results, which becomes the new baseline."""
    if not world.report.probe.good:
        ranks.record_good_runs(world)
    less = "590.999" not in world.last_edit
    driver_upgrade(world)
    world.after(2 * MINUTE, partial(ranks.run(ranks.LESS if less else ranks.HEALTHY), world))


def jobs(world: World) -> None:
    """Run jobs of two minutes with pauses of a minute."""
    jobs = [{"start": world.now + 180 * n, "end": world.now + 180 * n + 120, "load": 0.97} for n in range(3)]
    world.edit(scenario({"jobs": jobs}, [], 0.0))


def mig(world: World) -> None:
    """Enable MIG on an idle GPU, change its layout, and disable it."""
    idle = {"idle": True}
    for seconds, layout in ((0.0, ["3g.40gb", "3g.40gb"]), (90.0, ["1g.10gb"] * 7), (180.0, [])):
        world.after(seconds, partial(edit, world, ScenarioStep(gpu={"mig": layout}), idle))
    world.after(270.0, partial(recover, world, idle))


def late_links(world: World) -> None:
    """Reboot; NVLinks and fabric are down for 90 seconds."""
    world.planned_reboot()
    down = {"gpus": {"*": {"nvlinks": {"*": {"state": "down"}}, "fabric": {"state": 2}}}}
    world.edit(scenario({**BUSY, **down}, [], 0.0))
    world.after(90.0, partial(recover, world))


def node_for(seconds: float, **fault: Any) -> Callable[[World], None]:
    """Return an action that applies a scenario to the whole node for this time. Adapters under `nics` stay."""
    before = {**BUSY, **{key: value for key, value in fault.items() if key == "nics"}}

    def act(world: World) -> None:
        world.edit(scenario({**BUSY, **fault}, [], world.now))
        world.after(seconds, partial(recover, world, before))

    return act


def slow_opening(world: World) -> None:
    """Restart the agent while each GPU takes two seconds to open, as without persistence mode."""
    scenario_ = {"idle": True, "delay": {"nvmlDeviceGetHandleByPciBusId*": 2.0}}
    world.edit(scenario(scenario_, [], 0.0))
    world.restart()


def replace_card(world: World) -> None:
    """Reboot with an adapter replaced; the next time with the old one."""
    replaced = "replaced: true" not in world.last_edit
    world.edit(scenario({**BUSY, "ports": {PORT: {"replaced": replaced}}}, [], 0.0))
    world.planned_reboot()


def take_card_out(world: World) -> None:
    """Remove an adapter; the operator accepts the inventory after the reboot."""
    world.edit(scenario({**BUSY, "ports": {PORT: {"absent": True}}}, [], 0.0))
    world.planned_reboot()
    world.after(30.0, world.accept)


def full_disk(world: World) -> None:
    """Fill the disk for two minutes."""
    world.fill_disk()
    world.after(2 * MINUTE, partial(world.fill_disk, full=False))


def given_away(world: World) -> None:
    """Release the node, pass a GPU to a virtual machine, and take it back."""
    world.release(MINUTE)
    world.after(15.0, partial(edit, world, ScenarioStep(gpu={"bound": "vfio-pci"}), {"idle": True}))
    world.after(5 * MINUTE, partial(recover, world, {"idle": True}))


def freeze(world: World) -> None:
    """Freeze the daemon and its children, as by `docker pause`; the host continues."""
    world.host.at += 10 * MINUTE


def driver_late(world: World) -> None:
    """Reboot; the driver is loaded four minutes later."""
    world.planned_reboot()
    world.edit("driver: not_loaded")
    world.after(4 * MINUTE, partial(recover, world, {"idle": True}))


def upgrade_by_reboot(world: World) -> None:
    world.planned_reboot()
    world.edit(_other_driver(world))


def no_clock(world: World) -> None:
    """Reboot with the clock in 1970, which NTP corrects a minute later."""
    world.planned_reboot()
    world.host.stepped = -world.host.booted
    world.after(MINUTE, partial(setattr, world.host, "stepped", 0.0))


def reset(world: World) -> None:
    """Release the node and reset a GPU, as by nvidia-smi --gpu-reset: its counters restart at 0."""
    restarted = {"value": 0, "rate": 90, "from": "now"}
    world.release(MINUTE)
    world.after(15.0, partial(edit, world, ScenarioStep(gpu={"reset_required": True}), {"idle": True}))
    world.after(30.0, partial(edit, world, ScenarioStep(gpu={"set": {"energy": restarted}}), {"idle": True}))


def reset_behind_switch(world: World) -> None:
    """Reset a GPU, and log the links that go down with it, as the NVSwitches do."""
    reset(world)
    for seconds in (15.5, 16.0):
        world.after(seconds, partial(world.log_kernel_line, SWITCH_LINK_DOWN))


def links_train(world: World) -> None:
    """Log what NVSwitches log for each link while the driver is loaded: NVIDIA/nvtrust#124 (570.195.03, HGX H100)."""
    for link in range(4):
        line = (
            f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link {link:02} Minion Link DLREQ interrupt"
        )
        world.log_kernel_line(line)


def mig_on_half(world: World) -> None:
    """Enable MIG on half of the GPUs; the others stay busy."""
    count = len(PROFILES[world.profile].bus_ids)
    layouts = {gpu: {"mig": ["3g.40gb", "3g.40gb"]} for gpu in range(count // 2)}
    world.edit(scenario({**BUSY, "gpus": layouts}, [], 0.0))
    world.after(5 * MINUTE, partial(recover, world))


def ecc_off(world: World) -> None:
    """Disable ECC, which takes effect with the next boot."""

    def mode(now: int) -> None:
        world.edit(scenario({**BUSY, "gpus": {"*": {"ecc": {"mode": now, "pending": 0}}}}, [], world.now))

    mode(1)
    world.after(5 * MINUTE, world.planned_reboot)
    world.after(5 * MINUTE, partial(mode, 0))
    world.after(15 * MINUTE, partial(recover, world))


def ports_restart(world: World) -> None:
    """Reload the driver of all adapters: they are absent for 40 seconds."""
    count = getattr(PROFILES[world.profile].ports, "count", 0)
    node_for(40.0, ports={f"mlx5_{number}": {"absent": True} for number in range(count)})(world)


def killed_job(world: World) -> None:
    """Kill a job on all GPUs: a channel of each is removed."""
    for bus_id in PROFILES[world.profile].bus_ids:
        world.log_kernel_line(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 45, pid=1234, name=python3, Ch 00000008")
    world.edit(scenario({**BUSY, "gpus": {"*": {"xids": [45]}}}, [], 0.0))
    world.after(MINUTE, partial(recover, world))


def reload(world: World) -> None:
    world.reload(log={"level": "warning"})


def neighbour_fails(world: World) -> None:
    bus_id = PROFILES[world.profile].bus_ids[WITHHELD[0]]
    world.log_kernel_line(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 79, GPU has fallen off the bus.")
