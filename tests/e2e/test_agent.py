"""The running agent as an operator uses it: probe, configuration, store, driver faults and the command line."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, Metrics, eventually
from scrapes import Scrapes

pytestmark = pytest.mark.slow


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path)
    one.simulate({"idle": True})
    yield one
    if hasattr(one, "process"):
        one.stop()


def quiet(agent: AgentProcess, **sections: object) -> str:
    """Write a configuration without scheduled probe runs, and return the flag that names it."""
    path = agent.folder / "gpumon.yml"
    path.write_text(json.dumps({"probe": {"initial_delay_seconds": 3600, "deadline_seconds": 20}} | sections))
    return f"--config.file={path}"


def test_the_first_scheduled_probe_is_a_real_checked_all_reduce(agent: AgentProcess) -> None:
    """The schedule starts a gloo all-reduce of two ranks, and a command starts another one."""
    agent.start()
    assert agent.status("/probe/allreduce") in {200, 202}
    last = eventually(lambda: agent.get("/probe/allreduce")["last"])

    assert (last["outcome"], last["backend"], last["ranks"], last["wrong_elements"]) == ("ok", "gloo", 2, 0)
    assert last["measurements"]
    for each in last["measurements"]:
        algbw = each["bytes"] / each["latency_seconds"]["p50"]
        assert each["algbw_bytes_per_second"] == pytest.approx(algbw)
        assert each["busbw_bytes_per_second"] == pytest.approx(algbw * 2 * (2 - 1) / 2)
    assert agent.metrics().value("gpumon_probe_allreduce_runs_total", outcome="ok") == 1
    assert agent.status("/probe/allreduce?assert=ok&max_age=1h") == 200

    ran = agent.command("probe", "allreduce", "--json")
    assert (json.loads(ran.stdout)["outcome"], ran.returncode) == ("ok", 0)
    eventually(lambda: agent.metrics().value("gpumon_probe_allreduce_runs_total", outcome="ok") == 2)


def test_a_new_process_on_a_gpu_ends_the_run(tmp_path: Path) -> None:
    """A process without load and memory ends the run: only the list of processes shows it."""
    agent = AgentProcess(tmp_path, environment={"GPUMON_PROBE_FAULT": "sleep:1:1"})
    agent.simulate({"idle": True})
    agent.start(quiet(agent, probe={"initial_delay_seconds": 3600, "deadline_seconds": 120}))
    try:
        status, begun = agent.post("/probe/allreduce")
        assert status == 202
        eventually(lambda: (agent.get("/probe/allreduce")["progress"] or {}).get("stage") in {"warm_up", "measure"})
        agent.simulate({"jobs": [{"gpus": [3], "load": 0.0, "memory": 0.0}]})
        result = eventually(lambda: (one := agent.get(f"/api/v1/probes/{begun['id']}")).get("outcome") and one)
        assert (result["outcome"], result["reason"]) == ("skipped", "busy")
        assert "Another process came to GPU 3" in result["hint"]
        assert agent.metrics().value("gpumon_probe_allreduce_skips_total", reason="busy") == 1
        assert not agent.children("gpumon/probe/worker")
    finally:
        agent.stop()


def test_the_command_fails_after_a_run_with_wrong_elements(tmp_path: Path) -> None:
    """A corrupted element is detected, and the exit code is 1."""
    agent = AgentProcess(tmp_path, environment={"GPUMON_PROBE_FAULT": "corrupt:1"})
    agent.simulate({"idle": True})
    agent.start(quiet(agent, probe={"initial_delay_seconds": 3600, "deadline_seconds": 80}))
    try:
        ran = agent.command("probe", "allreduce", "--json")
        result = json.loads(ran.stdout)
        assert (result["outcome"], ran.returncode) == ("wrong", 1)
        assert result["wrong_elements"] > 0
        eventually(lambda: agent.metrics().value("gpumon_probe_allreduce_running") == 0)
        assert not agent.children("probe/worker")
    finally:
        agent.stop()


def test_sighup_applies_a_valid_file_and_ignores_an_invalid_one(agent: AgentProcess) -> None:
    """A reload takes effect without a restart. A mistake changes nothing and is reported with its line."""
    agent.start(quiet(agent))
    quiet(agent, gpus={"expected_count": 9})
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: agent.metrics().value("gpumon_gpus_expected") == 9)

    (agent.folder / "gpumon.yml").write_text("gpus:\n  expected_cuont: 4\n")
    agent.process.send_signal(signal.SIGHUP)
    notice = eventually(
        lambda: [each for each in agent.get("/api/v1/node")["notices"] if each["subject"] == "configuration"]
    )

    assert "gpumon.yml:2" in notice[0]["message"]
    assert "expected_count" in notice[0]["message"]
    assert agent.metrics().value("gpumon_gpus_expected") == 9


def test_sighup_does_not_apply_settings_that_need_a_restart(tmp_path: Path) -> None:
    """A new profile is logged but not used. A setting that the sampler does not use does not replace the sampler."""
    agent = AgentProcess(tmp_path, profile=None)
    simulate = {"profile": "h100x1", "scenario": str(agent.scenario)}
    agent.start(quiet(agent, simulate=simulate))
    try:
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up") == {"0": 1})
        probe = {"initial_delay_seconds": 3600, "deadline_seconds": 30}
        quiet(agent, simulate={"profile": "t4x1"}, log={"level": "warning"}, probe=probe, gpus={"expected_count": 3})
        next_run = agent.get("/probe/allreduce")["next_run"]
        agent.process.send_signal(signal.SIGHUP)
        eventually(lambda: agent.metrics().value("gpumon_gpus_expected") == 3)
        assert agent.metrics().value("gpumon_sampler_restarts_total", reason="configuration") == 0
        assert agent.get("/probe/allreduce")["next_run"] == next_run
        logged = [line for line in agent.log.read_text(encoding="utf-8").splitlines() if "simulate.profile" in line]
        assert len(logged) == 1
        assert 'effect="after a restart"' in logged[0]

        quiet(agent, simulate={"profile": "t4x1"}, poll={"interval_seconds": 0.5})
        agent.process.send_signal(signal.SIGHUP)
        eventually(lambda: agent.metrics().value("gpumon_sampler_restarts_total", reason="configuration") == 1)
        eventually(lambda: agent.metrics().gpus("gpumon_gpu_up") == {"0": 1})
        assert agent.get("/api/v1/gpus")["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    finally:
        agent.stop()


@pytest.mark.parametrize(
    ("command", "profile", "scenario", "complaint"),
    [
        (("config", "check"), "nope", None, "--simulate: simulate.profile: unknown name 'nope'; valid names: a100x8,"),
        (("config", "check"), "t4x1", None, "s.yml: cannot be read"),
        (
            ("config", "check"),
            "t4x1",
            "gpus:\n  0: {lsot: true}\n",
            "s.yml:2: gpus.0.lsot: unknown key 'lsot'; valid keys: ",
        ),
        (("config", "check"), "t4x1", "seed: 2020-13-45\n", "s.yml: not YAML (month must be in 1..12)"),
        (("once",), "nope", None, "--simulate: simulate.profile: unknown name 'nope'; valid names: a100x8,"),
        (("once",), "t4x1", None, "s.yml: cannot be read"),
        (("serve",), "nope", None, "--simulate: simulate.profile: unknown name 'nope'; valid names: a100x8,"),
        (("serve",), "t4x1", None, "s.yml: cannot be read"),
    ],
)
def test_a_node_that_cannot_be_simulated_is_a_configuration_error(
    tmp_path: Path, command: tuple[str, ...], profile: str, scenario: str | None, complaint: str
) -> None:
    """Each command that uses the scenario reports the mistake with its place and exits with 2."""
    path = tmp_path / "s.yml"
    if scenario is not None:
        path.write_text(scenario, encoding="utf-8")
    arguments = [sys.executable, "-m", "gpumon", *command, f"--simulate={profile}", f"--simulate.scenario={path}"]
    environment = os.environ | {"GPUMON_STORE__PATH": str(tmp_path / "gpumon.db")}
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=150)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_sampler_that_starts_with_an_invalid_scenario_waits_for_a_valid_one(agent: AgentProcess) -> None:
    """The sampler does not crash: the agent reports file and line, and polls again when the file is valid."""
    agent.start(quiet(agent))
    agent.simulate({"gpus": {0: {"lsot": True}}})
    for sampler in agent.children("gpumon.collectors.sampler"):
        os.kill(sampler, signal.SIGKILL)
    eventually(lambda: "scenario.yml:3: gpus.0.lsot: unknown key" in json.dumps(agent.get("/api/v1/node")["notices"]))
    assert agent.metrics().value("gpumon_nvml_up") == 0

    agent.simulate({"idle": True})
    eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_up").values()) == {1})
    assert agent.metrics().value("gpumon_sampler_restarts_total", reason="crash") == 1  # ours


def test_once_fails_if_its_sampler_keeps_crashing(tmp_path: Path) -> None:
    """A library that crashes at each start ends the command with exit code 1 and the reason."""
    scenario = tmp_path / "s.yml"
    scenario.write_text("crash: [nvmlInit*]\n", encoding="utf-8")
    arguments = [sys.executable, "-m", "gpumon", "once", "--simulate=t4x1", f"--simulate.scenario={scenario}"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=150)

    assert ran.returncode == 1
    assert "gpumon: the sampler ended 3 times" in ran.stderr


def test_the_agent_raises_its_limit_of_descriptors(agent: AgentProcess) -> None:
    """The soft limit becomes the hard limit, so that a small default does not prevent the start of children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1, highest + 256), hard))
    try:
        agent.start(quiet(agent))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize("trouble", ["corrupt", "folder"])
def test_an_unusable_store_does_not_stop_the_agent(agent: AgentProcess, trouble: str) -> None:
    """A damaged file is moved and replaced. One that cannot be opened is reported, and events count in memory."""
    store = agent.folder / "gpumon.db"
    if trouble == "corrupt":
        agent.start(quiet(agent))
        agent.stop()
        with store.open("r+b") as damaged:
            damaged.seek(4096)
            damaged.write(os.urandom(2 * 4096))
    else:
        store.mkdir()
    agent.start(quiet(agent))
    agent.simulate({"idle": True, "gpus": {2: {"xids": [48]}}})
    eventually(lambda: agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="2", xid="48") == 1)

    if trouble == "corrupt":
        eventually(lambda: agent.metrics().value("gpumon_store_up") == 1)
        eventually(lambda: list(agent.folder.glob("gpumon.db.corrupt-*")))
        assert agent.metrics().value("gpumon_maintenance_end_timestamp_seconds") is None, "rules keep the last verdicts"
        eventually(lambda: "gpumon_history_unread" in checks_of(agent))
        agent.stop()
        agent.start(quiet(agent))
        eventually(lambda: "gpumon_history_unread" in checks_of(agent))
        assert agent.metrics().value("gpumon_maintenance_end_timestamp_seconds") is None
        eventually(lambda: agent.post("/api/v1/clear?check=gpumon_history_unread")[0] == 200)
        eventually(lambda: agent.metrics().value("gpumon_maintenance_end_timestamp_seconds") == 0)
    else:
        eventually(lambda: agent.metrics().value("gpumon_store_up") == 0)
        notices = eventually(lambda: agent.get("/api/v1/node")["notices"])
        assert str(store) in " ".join(each["message"] for each in notices)
        eventually(lambda: "gpumon_history_unread" in checks_of(agent))


def checks_of(agent: AgentProcess) -> list[str]:
    """Return the checks of the open verdicts."""
    return [verdict["check"] for verdict in agent.get("/api/v1/health")["verdicts"]]


@pytest.mark.parametrize("driver", ["absent", "not_loaded", "mismatch"])
def test_a_driver_that_is_loaded_after_the_start(agent: AgentProcess, driver: str) -> None:
    """Until then the agent is ready with NVML down, and a notice names what is missing."""
    agent.simulate({"idle": True, "driver": driver})
    agent.start(quiet(agent))
    page = agent.metrics()
    assert (page.value("gpumon_nvml_up"), page.value("gpumon_gpus_expected")) == (0, 8)
    assert agent.get("/api/v1/node")["notices"]

    agent.simulate({"idle": True})
    eventually(lambda: agent.metrics().gpus("gpumon_gpu_up") == {str(n): 1 for n in range(8)})


def test_a_driver_that_is_unloaded_and_loaded_again(agent: AgentProcess) -> None:
    """Readings vanish and identity stays until the driver is back, and no counter decreases."""
    agent.start(quiet(agent))
    energy = agent.metrics().gpus("gpumon_gpu_energy_joules_total")
    assert len(energy) == 8
    agent.simulate({"idle": True, "driver": "not_loaded"})
    eventually(lambda: agent.metrics().value("gpumon_nvml_up") == 0)
    page = agent.metrics()
    assert not page.gpus("gpumon_gpu_temperature_celsius")
    assert len(page.gpus("gpumon_gpu_info")) == 8

    agent.simulate({"idle": True})
    eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_up").values()) == {1})
    after = agent.metrics().gpus("gpumon_gpu_energy_joules_total")
    assert all(after[gpu] >= energy[gpu] for gpu in energy)


def test_a_driver_upgrade_under_the_agent_loses_no_gpu(agent: AgentProcess) -> None:
    """The loaded library no longer works, so NVML is down until a new sampler has loaded the new one."""
    agent.start(quiet(agent))
    with Scrapes(agent) as scrapes:
        agent.simulate({"idle": True, "driver_version": "610.43.02"})
        eventually(lambda: agent.metrics().value("gpumon_driver_info", driver="610.43.02") == 1)
        eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_up").values()) == {1})

    assert any(page.value("gpumon_nvml_up") == 0 for _, page in scrapes.pages)
    # While the GPUs are read one after another, their versions differ for one poll.
    assert not [alert for alert in agent.get("/api/v1/alerts")["alerts"] if alert["state"] != "pending"]
    assert "is lost" not in agent.log.read_text(encoding="utf-8")
    assert agent.metrics().value("gpumon_sampler_restarts_total", reason="mismatch") == 1


def test_gpus_that_join_and_leave_the_bus(agent: AgentProcess) -> None:
    """A GPU that joins is read, one that leaves is missing, and one bound to vfio-pci is not expected."""
    agent.simulate({"idle": True, "gpus": {7: {"absent": True}}})
    agent.start(quiet(agent))
    assert (agent.metrics().value("gpumon_gpus_visible"), agent.metrics().value("gpumon_gpus_expected")) == (7, 8)
    agent.simulate({"idle": True})
    eventually(lambda: agent.metrics().gpus("gpumon_gpu_up") == {str(n): 1 for n in range(8)})
    assert agent.metrics().value("gpumon_gpus_expected") == 8

    agent.simulate({"idle": True, "gpus": {6: {"absent": True}, 7: {"bound": "vfio-pci"}}})
    eventually(lambda: agent.metrics().value("gpumon_gpu_fault", gpu="6", fault="missing") == 1)
    page = eventually(lambda: _without(agent, "7"))

    assert page.value("gpumon_gpus_on_pci_bus", driver="vfio-pci") == 1
    assert page.gpus("gpumon_gpu_up")["0"] == 1


def _without(agent: AgentProcess, gpu: str) -> Metrics | None:
    page = agent.metrics()
    return page if gpu not in page.gpus("gpumon_gpu_up") else None


def test_without_a_pci_bus_the_gpus_of_the_driver_are_read(agent: AgentProcess) -> None:
    """Where sysfs shows no GPU, as in gVisor or WSL, those that NVML lists are read; a failing one hides no other."""
    agent.simulate({"idle": True, "place": "sandbox", "gpus": {2: {"lookup": 999}}})
    agent.start(quiet(agent, gpus={"exclude": ["00000000:DF:00.0"]}))
    eventually(lambda: set(agent.metrics().gpus("gpumon_gpu_up")) == {"0", "1", "3", "4", "5", "6"})
    page = agent.metrics()
    assert (page.value("gpumon_gpus_visible"), page.value("gpumon_gpus_expected")) == (8, 8)
    assert "gpumon_gpus_on_pci_bus" not in page.families
    assert agent.get("/api/v1/inventory")["place"] == "sandbox"
    assert agent.log.read_text(encoding="utf-8").count("sysfs shows no NVIDIA GPU") == 1
    eventually(lambda: "but only 7 can be opened" in agent.ask("/api/v1/health")[1].decode(), within=120)

    agent.simulate({"idle": True, "place": "sandbox", "gpus": {3: {"lost": True}}})
    eventually(lambda: agent.metrics().value("gpumon_gpu_fault", gpu="3", fault="lost") == 1)
    assert agent.metrics().gpus("gpumon_gpu_up")["0"] == 1


def test_excluded_gpus_are_never_opened(agent: AgentProcess) -> None:
    """GPUs excluded by index, bus id or uuid are not looked up, so a lookup that hangs does no harm."""
    bus_id, uuid = "00000000:61:00.0", "GPU-d32d5608-a5a9-2291-d10c-8bddd0823832"
    agent.simulate({"idle": True, "gpus": {key: {"hang": ["nvmlDevice*"]} for key in (0, 3, 7)}})
    agent.start(quiet(agent, gpus={"exclude": ["0", bus_id, uuid]}))

    assert set(agent.metrics().gpus("gpumon_gpu_up")) == {"1", "2", "4", "5", "6"}
    assert agent.metrics().value("gpumon_nvml_stuck_seconds") == 0


def test_a_hanging_initialisation_does_not_block_the_agent(agent: AgentProcess) -> None:
    """The agent is ready without readings, and reads all GPUs when the driver answers."""
    agent.simulate({"idle": True, "hang": ["nvmlInit*"]})
    agent.start(quiet(agent))
    page = agent.metrics()
    assert page.value("gpumon_nvml_up") == 0
    assert (page.value("gpumon_nvml_stuck_seconds") or 0) > 0
    assert not page.gpus("gpumon_gpu_up")

    agent.simulate({"idle": True})
    eventually(lambda: len(agent.metrics().gpus("gpumon_gpu_up")) == 8)


def test_events_are_listed_newest_first(agent: AgentProcess) -> None:
    """`gpumon events` prints a line for each error, filtered by GPU; another GPU has none."""
    agent.start(quiet(agent))
    agent.simulate({"idle": True, "gpus": {3: {"xids": [48]}, 5: {"xids": [63]}}})
    eventually(lambda: {event["xid"] for event in agent.get("/api/v1/events")["events"]} == {48, 63})
    shown = agent.command("events", "--gpu", "3")
    title, line = shown.stdout.splitlines()
    assert title.split() == ["LAST", "SEVERITY", "DEVICE", "TIMES", "EVENT"]
    assert re.fullmatch(r"\S+ \S+Z  critical  GPU 3   1      Xid 48: .*", line), shown.stdout
    assert agent.command("events", "--gpu", "0").stdout == "No event is stored that matches.\n"
    wrong = agent.command("events", "--since", "soon")
    assert (wrong.returncode, "RFC 3339" in wrong.stderr) == (2, True)


def test_a_second_agent_on_the_same_address_exits(agent: AgentProcess) -> None:
    """The second agent reports that the address is in use and how to change it, and exits with 1."""
    agent.start(quiet(agent))
    flags = [f"--web.listen-address=127.0.0.1:{agent.port}", f"--store.path={agent.folder / 'other.db'}"]
    command = [sys.executable, "-m", "gpumon", "serve", "--simulate=t4x1", *flags]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)

    assert second.returncode == 1, "systemd restarts it, and not after an invalid configuration (2)"
    assert f"127.0.0.1:{agent.port}" in second.stderr
    assert "--web.listen-address" in second.stderr


def test_log_messages_of_the_children_are_counted(agent: AgentProcess) -> None:
    """A warning of the sampler and one of the host child are in the log and in the counter of log messages."""

    def warnings() -> float:
        return agent.metrics().value("gpumon_log_messages_total", level="warning") or 0.0

    agent.simulate({"idle": True})
    agent.start(quiet(agent))
    before = warnings()
    full = {"mlx5_0": {"counters": {"symbol_error": 65_535}}}
    agent.simulate({"idle": True, "gpus": {1: {"garbage": {"temperature": 65_535}}}, "ports": full})
    eventually(lambda: warnings() >= before + 2)

    log = agent.log.read_text(encoding="utf-8")
    assert "implausible reading is left out" in log
    assert "a counter has reached its maximum" in log
