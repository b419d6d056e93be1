"""The scripts for Slurm, run as slurmd runs them, against real agents."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from agents import AgentProcess, eventually
from schedulers import DRAINED, SlurmHost

pytestmark = pytest.mark.slow


SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
HEALTHCHECK, PROLOG, EPILOG = (SLURM / f"gpumon-{name}.sh" for name in ("healthcheck", "prolog", "epilog"))
LOST = 3
DRAIN, RESUME = {"GPUMON_SLURM_DRAIN": "fail"}, {"GPUMON_SLURM_RESUME": "yes"}
NOT_FREE = """\
#!/bin/sh
[ "$1" != probe ] || { echo "gpumon: Still there: rank 99 of the probe." >&2; exit 1; }
echo "GPU OK: 8 GPUs healthy."
"""
LIST = ["--oneliner", "show", "node"]
SHOW = [*LIST, "n17"]


class Agents(NamedTuple):
    failed: AgentProcess
    stores: dict[str, Path]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Yield agents on a healthy node and on one with a lost GPU, and the store of an agent that never ran."""
    healthy, failed = (AgentProcess(tmp_path_factory.mktemp(name)) for name in ("healthy", "failed"))
    failed.simulate({"gpus": {LOST: {"lost": True}}})
    try:
        for agent in (healthy, failed):
            agent.launch()
        stores = {"healthy": healthy.folder / "gpumon.db", "failed": failed.folder / "gpumon.db"}
        eventually(lambda: _level(stores["failed"]) == "fail")
        eventually(lambda: _level(stores["healthy"]) == "ok")
        yield Agents(failed, stores | {"none": healthy.folder / "none.db"})
    finally:
        healthy.stop()
        failed.stop()


def _level(store: Path) -> str:
    """Return the level in the health file beside a store."""
    return str(json.loads(Path(f"{store}.health.json").read_text())["level"])


@pytest.fixture
def host(tmp_path: Path) -> SlurmHost:
    return SlurmHost(tmp_path / "host")


@pytest.mark.parametrize("store", ["healthy", "failed", "none"])
def test_nothing_is_changed_by_default(host: SlurmHost, agents: Agents, store: str) -> None:
    """No script calls Slurm or fails, and problems are in the system log."""
    for script in (HEALTHCHECK, PROLOG, EPILOG):
        ran = host.run(
            script, store=agents.stores[store], environment={"SLURM_JOB_GPUS": str(LOST), "SLURM_JOB_ID": "7"}
        )
        assert ran.code == 0, script
        assert host.calls("scontrol") == []
        logged = [" ".join(call) for call in host.calls("logger")]
        assert bool(logged) is (store != "healthy"), script
        assert store != "failed" or "GPU FAIL: GPU 3: It fell off the bus" in logged[-1]
        host.forget()


def test_a_failed_node_is_drained_with_its_reason(host: SlurmHost, agents: Agents) -> None:
    ran = host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN)
    shown, counted, counted_again, drained = host.calls("scontrol")
    assert (ran.code, shown, counted, counted_again) == (0, SHOW, LIST, LIST)
    assert drained[:3] == ["update", "nodename=n17", "state=drain"]
    assert drained[3].startswith("reason=gpumon: GPU FAIL: GPU 3: It fell off the bus")
    assert len(drained[3]) <= len("reason=") + 200


def updates(host: SlurmHost) -> list[str]:
    """Return the states that scontrol set."""
    return [call[2] for call in host.calls("scontrol") if call[0] == "update"]


def message(host: SlurmHost) -> str:
    """Return the last message in the system log."""
    return host.calls("logger")[-1][-1]


@pytest.mark.parametrize(
    ("drained", "settings", "refusal"),
    [
        ([], {}, ""),
        ([DRAINED], {}, "gpumon has drained 1 of 10 nodes of partition gpu, of max 1"),
        ([("IDLE+DRAIN", "new DIMMs"), ("DOWN", ""), ("IDLE", DRAINED[1])], {}, ""),
        ([("IDLE+DRAIN", "see Reason=gpumon: ")], {}, ""),
        ([DRAINED, DRAINED], {"GPUMON_SLURM_MAX_DRAINED": "30"}, ""),
        (
            [DRAINED, ("MIXED+DRAIN", DRAINED[1]), ("DOWN+DRAIN", DRAINED[1])],
            {"GPUMON_SLURM_MAX_DRAINED": "30"},
            "3 of",
        ),
        ([], {"GPUMON_SLURM_MAX_DRAINED": "1"}, ""),
        ([], {"GPUMON_SLURM_MAX_DRAINED": "0"}, "has drained 0 of 10 nodes of partition gpu, of max 0"),
        ([DRAINED], {"GPUMON_SLURM_MAX_DRAINED": "100"}, ""),
        ([], {"GPUMON_SLURM_MAX_DRAINED": "ten"}, "GPUMON_SLURM_MAX_DRAINED is ten, not 0 to 100"),
        ([], {"GPUMON_SLURM_MAX_DRAINED": "-1"}, "GPUMON_SLURM_MAX_DRAINED is -1, not 0 to 100"),
    ],
)
def test_only_a_share_of_a_partition_is_drained(
    host: SlurmHost, agents: Agents, drained: list[tuple[str, str]], settings: dict[str, str], refusal: str
) -> None:
    """Only drains with the script's own reason count, and at least one node may be drained unless the share is 0."""
    host.partition(*drained)
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN | settings).code == 0
    assert updates(host) == ([] if refusal else ["state=drain"])
    assert not refusal or (message(host).startswith("node n17 is not drained: ") and refusal in message(host))


def test_each_partition_of_a_node_has_its_limit(host: SlurmHost, agents: Agents) -> None:
    """A node in a full partition is not drained, whichever partition is named first."""
    host.partition(DRAINED)
    for partitions in ("gpu,debug", "debug,gpu"):
        host.node("IDLE", partitions=partitions)
        assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
        assert updates(host) == []
        assert "1 of 10 nodes of partition gpu" in message(host)


def test_the_second_count_refuses_too(host: SlurmHost, agents: Agents) -> None:
    """A node that is drained during the random delay counts, and so does an operator who drains this node then."""
    host.partition(DRAINED, then=True)
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
    assert updates(host) == []
    assert "1 of 10 nodes" in message(host)
    host.partition()
    host.node("IDLE+DRAIN", "new DIMMs", then=True)
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
    assert updates(host) == []
    assert message(host) == "node n17 is not drained: its state is IDLE+DRAIN by now"


def test_nothing_is_drained_without_a_count(host: SlurmHost, agents: Agents, tmp_path: Path) -> None:
    """If Slurm lists no nodes, or not this one, the node stays in service."""
    host.node("IDLE", partitions="")
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
    assert message(host) == "node n17 is not drained: Slurm lists no partition of this node"
    scontrol = tmp_path / "host" / "bin" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("\ncase", "\n[ $# != 3 ] || exit 1\ncase"))
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
    assert message(host) == "node n17 is not drained: Slurm does not list the nodes"
    assert updates(host) == []


def test_a_node_is_drained_once_per_failure(host: SlurmHost, agents: Agents) -> None:
    """A node that an operator resumes while it fails is not drained again before its verdict has cleared."""
    for expected in (["state=drain"], []):
        assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
        assert updates(host) == expected
        host.forget()
    assert host.run(HEALTHCHECK, store=agents.stores["none"], environment=DRAIN).code == 0
    assert host.mark.exists(), "an agent that is restarted has cleared nothing"
    assert host.run(HEALTHCHECK, store=agents.stores["healthy"], environment=DRAIN).code == 0
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
    assert updates(host) == ["state=drain"]


def test_a_drained_node_is_not_changed(host: SlurmHost, agents: Agents) -> None:
    for state in ("IDLE+DRAIN", "MIXED+DRAIN", "DOWN", "DOWN*+DRAIN", "FAIL", "IDLE+MAINT+RESERVED"):
        for reason in ("gpumon: GPU FAIL: GPU 3", "new DIMMs State=IDLE"):
            host.node(state, reason)
            assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
            assert host.calls("scontrol") == [SHOW], (state, reason)
            host.forget()


def test_maintenance_drains_and_resumes_nothing(host: SlurmHost, agents: Agents) -> None:
    status, _ = agents.failed.post("/api/v1/windows?kind=maintenance&for_seconds=600&reason=DIMMs")
    assert status == 200
    try:
        eventually(lambda: json.loads((agents.failed.folder / "gpumon.db.health.json").read_text())["maintenance"])
        assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN).code == 0
        assert host.calls("scontrol") == []
        host.node("IDLE+DRAIN", "gpumon: GPU FAIL: GPU 3")
        assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=RESUME).code == 0
        assert host.calls("scontrol") == []
        healthy = host.answering("GPU OK: 8 GPUs healthy. [maintenance until 2026-11-20 22:02:34 UTC: DIMMs]", 0)
        assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment={**RESUME, **healthy}).code == 0
        assert host.calls("scontrol") == [], "healthy GPUs do not mean that the work on the node is done"
    finally:
        agents.failed.post("/api/v1/windows?kind=maintenance", method="DELETE")


def test_an_unknown_health_drains_nothing(host: SlurmHost, agents: Agents) -> None:
    """Without an agent or without gpumon, Slurm is not called."""
    for environment in (DRAIN, {**DRAIN, "GPUMON": "/nonexistent/gpumon"}):
        assert host.run(HEALTHCHECK, store=agents.stores["none"], environment=environment).code == 0
        assert host.calls("scontrol") == []
        assert host.calls("logger")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_an_exit_code_without_a_result_is_ignored(host: SlurmHost, agents: Agents, code: int) -> None:
    """A version without `check` exits 2 and a broken installation 1, which do not describe the GPUs."""
    environment = {**DRAIN, **RESUME, **host.answering("", code), "SLURM_JOB_GPUS": "3"}
    host.node("IDLE+DRAIN" if code == 0 else "IDLE", "gpumon: GPU FAIL: GPU 3")
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=environment).code == 0
    assert host.calls("scontrol") == []
    for refuse in ("fail", "unknown"):
        ran = host.run(
            PROLOG, store=agents.stores["failed"], environment={**environment, "GPUMON_SLURM_REFUSE": refuse}
        )
        assert ran.code == (refuse == "unknown")
    messages = [call[-1] for call in host.calls("logger")]
    failures = ("printed no result", "gpumon probe hold failed", "gpumon mapping begin failed")
    assert all(any(failure in message for failure in failures) for message in messages)
    assert any("printed no result" in message for message in messages)


@pytest.mark.parametrize(
    "settings",
    ["GPUMON_SLURM_DRAIN='fail\n", "GPUMON_SLURM_DRAIN=${no_such}\n", "if\n", "false\n", "set -e\n", "exit 0\n"],
)
def test_invalid_settings_fail_no_script(host: SlurmHost, agents: Agents, tmp_path: Path, settings: str) -> None:
    """A typo in the file neither prevents slurmd from registering nor drains the node by a failed prolog."""
    (tmp_path / "host" / "bin" / "settings").write_text(settings)
    environment = {"SLURM_JOB_GPUS": str(LOST), "SLURM_JOB_ID": "7"}
    for script in (HEALTHCHECK, PROLOG, EPILOG):
        assert host.run(script, store=agents.stores["failed"], environment=environment).code == 0
        assert any("GPU FAIL: GPU 3" in call[-1] for call in host.calls("logger"))
        host.forget()


@pytest.mark.parametrize("script", [HEALTHCHECK, PROLOG, EPILOG], ids=lambda each: each.stem)
def test_a_script_without_its_shared_file_does_not_fail(
    host: SlurmHost, agents: Agents, tmp_path: Path, script: Path
) -> None:
    """It checks nothing and logs that, because a prolog that fails would drain the node."""
    alone = tmp_path / script.name
    shutil.copy(script, alone)
    environment = {**DRAIN, "SLURM_JOB_GPUS": str(LOST), "GPUMON_SLURM_REFUSE": "unknown"}
    assert host.run(alone, store=agents.stores["failed"], environment=environment).code == 0
    assert host.calls("scontrol") == []
    [said] = host.calls("logger")
    assert said[1] == script.stem
    assert said[-1] == f"{tmp_path}/gpumon-common.sh is missing: GPUs are not checked"


def test_a_failing_slurm_fails_no_script(host: SlurmHost, agents: Agents, tmp_path: Path) -> None:
    """A controller that does not answer is logged, and the next run tries again."""
    (tmp_path / "host" / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    ran = host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN)
    assert ran.code == 0
    assert "Slurm does not report the state of node n17" in ran.output


@pytest.mark.parametrize(
    ("state", "reason", "outcome"),
    [
        ("IDLE+DRAIN", "OWN", (RESUME, True)),
        ("IDLE+DRAIN", "OWN : reboot issued : reboot complete", (RESUME, True)),
        ("IDLE+DRAIN", "OWN : reboot issued and kept for kim", (RESUME, False)),
        ("IDLE+DRAIN", "OWN", (DRAIN, False)),
        ("IDLE+DRAIN", "new DIMMs", (RESUME, False)),
        ("IDLE+DRAIN", "after OWN", (RESUME, False)),
        ("IDLE+DRAIN", "OWN; kim: RMA 4711, keep out of service", (RESUME, False)),
        ("IDLE+DRAIN", "OWN [root@2026-11-20T17:00:00]; kim: RMA 4711", (RESUME, False)),
        ("IDLE+DRAIN", "OWN [root@2026-11-20T17:00:00] RMA=4711", (RESUME, False)),
        ("IDLE+DRAIN", "gpumon: RMA 4711, was OWN", (RESUME, False)),
        ("IDLE+DRAIN", "gpumon: GPU FAIL: GPU 3", (RESUME, False)),
        ("DOWN+DRAIN", "OWN", (RESUME, False)),
        ("IDLE", "OWN", (RESUME, False)),
    ],
)
def test_only_its_own_drain_is_resumed(
    host: SlurmHost, agents: Agents, state: str, reason: str, outcome: tuple[dict[str, str], bool]
) -> None:
    """If enabled, a healthy node is resumed only if this script drained it, and its reason is unchanged."""
    environment, resumed = outcome
    failed = host.answering("GPU FAIL: GPU 3: It fell off the bus", 2)
    assert host.run(HEALTHCHECK, store=agents.stores["failed"], environment=DRAIN | failed).code == 0
    own = host.calls("scontrol")[-1][3].removeprefix("reason=")
    host.forget()
    host.mark.unlink()  # as after a reboot
    host.node(state, reason.replace("OWN", own))
    assert host.run(HEALTHCHECK, store=agents.stores["healthy"], environment=environment).code == 0
    changed = [call for call in host.calls("scontrol") if call[0] == "update"]
    assert changed == ([["update", "nodename=n17", "state=resume"]] if resumed else [])


@pytest.mark.parametrize(
    ("store", "gpus", "outcome"),
    [
        ("failed", "3", ("fail", 1)),
        ("failed", "0,3", ("fail", 1)),
        ("failed", "0,1", ("fail", 0)),
        ("failed", "3", ("no", 0)),
        ("healthy", "3", ("unknown", 0)),
        ("none", "3", ("fail", 0)),
        ("none", "3", ("unknown", 1)),
        ("none", "", ("unknown", 0)),
    ],
)
def test_a_job_on_unfit_gpus_is_refused_if_enabled(
    host: SlurmHost, agents: Agents, store: str, gpus: str, outcome: tuple[str, int]
) -> None:
    """Only unfit GPUs of the job refuse it, an unknown health only if enabled, and a job without GPUs always starts."""
    refuse, code = outcome
    environment = {"SLURM_JOB_GPUS": gpus, "SLURM_JOB_ID": "7", "GPUMON_SLURM_REFUSE": refuse}
    assert host.run(PROLOG, store=agents.stores[store], environment=environment).code == code


def test_probes_are_held_from_prolog_to_epilog(host: SlurmHost, agents: Agents) -> None:
    """Each job with GPUs has a hold of its own unless holds are disabled."""

    def run(script: Path, job: str, gpus: str = "3", **settings: str) -> list[str]:
        environment = {"SLURM_JOB_GPUS": gpus, "SLURM_JOB_ID": job, **settings}
        assert host.run(script, store=agents.stores["failed"], environment=environment).code == 0
        return [each["owner"] for each in agents.failed.get("/api/v1/windows?kind=hold")["windows"]]

    assert run(PROLOG, "7") == ["7"]
    assert run(PROLOG, "8", GPUMON_SLURM_HOLD="15m") == ["7", "8"]
    assert run(PROLOG, "9", gpus="") == ["7", "8"]
    assert run(PROLOG, "9", GPUMON_SLURM_HOLD="no") == ["7", "8"]
    assert run(EPILOG, "7") == ["8"]
    assert run(EPILOG, "8") == []
    assert not [call for call in host.calls("logger") if "probe" in call[-1]]


def test_a_job_is_mapped_from_prolog_to_epilog(host: SlurmHost, agents: Agents) -> None:
    """A job that is refused, or without GPUs, is not mapped, and mapping can be disabled."""

    def run(script: Path, job: str, gpus: str = "2", **settings: str) -> dict[str, str]:
        environment = {"SLURM_JOB_GPUS": gpus, "SLURM_JOB_ID": job, **settings}
        host.run(script, store=agents.stores["failed"], environment=environment)
        return {str(each.relative_to(host.mapping)): each.read_text() for each in host.mapping.glob("[0-9]*")}

    assert run(PROLOG, "6", GPUMON_SLURM_MAPPING="no") == {}
    assert run(PROLOG, "6", gpus="") == {}
    assert run(PROLOG, "6", gpus=f"2,{LOST}", GPUMON_SLURM_REFUSE="fail") == {}
    assert run(PROLOG, "7", gpus="1,2") == {"1": "7\n", "2": "7\n"}
    assert run(PROLOG, "8") == {"1": "7\n", "2": "7\n8\n"}
    assert run(EPILOG, "7", gpus="") == {"1": "", "2": "8\n"}
    assert run(EPILOG, "8") == {"1": "", "2": ""}
    assert list(host.mapping.glob("jobs/*")) == []
    assert not [call for call in host.calls("logger") if "gpumon mapping" in call[-1]]


@pytest.mark.parametrize("script", [PROLOG, EPILOG], ids=lambda each: each.stem)
def test_a_failed_mapping_is_logged(host: SlurmHost, agents: Agents, script: Path) -> None:
    """The job starts and ends."""
    (host.mapping / "jobs" / "7.json" / "folder").mkdir(parents=True)
    environment = {"SLURM_JOB_GPUS": "2", "SLURM_JOB_ID": "7", "GPUMON_SLURM_REFUSE": "unknown"}
    assert host.run(script, store=agents.stores["healthy"], environment=environment).code == 0
    [arguments] = host.calls("logger")
    assert arguments[-1].startswith("job 7: gpumon mapping ")
    assert f"failed (exit code 2): gpumon: {host.mapping}: Is a directory: 7.json" in arguments[-1]


@pytest.mark.parametrize(("refuse", "code"), [("no", 0), ("fail", 0), ("unknown", 1)])
def test_a_failed_hold_is_logged(host: SlurmHost, agents: Agents, refuse: str, code: int) -> None:
    """The job starts unless the prolog refuses jobs of unknown health."""
    fake = host.answering("GPU OK: 8 GPUs healthy.", 0)
    Path(fake["GPUMON"]).write_text(NOT_FREE)
    environment = {**fake, "SLURM_JOB_GPUS": "3", "SLURM_JOB_ID": "7", "GPUMON_SLURM_REFUSE": refuse}
    assert host.run(PROLOG, store=agents.stores["healthy"], environment=environment).code == code
    [arguments] = host.calls("logger")
    assert arguments[-1] == "job 7: gpumon probe hold failed (exit code 1): gpumon: Still there: rank 99 of the probe."


def test_settings_are_read_from_their_file(host: SlurmHost, agents: Agents, tmp_path: Path) -> None:
    """Settings and more arguments of the command come from /etc/default/gpumon-slurm."""
    settings = tmp_path / "host" / "bin" / "settings"
    settings.write_text("GPUMON_SLURM_DRAIN=fail\n")
    host.run(HEALTHCHECK, store=agents.stores["failed"])
    assert updates(host) == ["state=drain"]
    host.forget()
    host.mark.unlink()
    settings.write_text("GPUMON_SLURM_DRAIN=fail\nGPUMON_SLURM_CHECK='--ignore gpu_lost --ignore gpu_missing'\n")
    host.run(HEALTHCHECK, store=agents.stores["failed"])
    assert host.calls("scontrol") == []


def test_scripts_are_posix_shell() -> None:
    """Shellcheck accepts the scripts: no syntax of bash, and no unquoted names."""
    scripts = sorted(SLURM.parent.glob("*/*.sh"))
    assert scripts
    ran = subprocess.run(
        ["shellcheck", "--shell=sh", *scripts], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout
