"""The exit code and the line of `gpumon check` follow from the health of the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample_reports
import yaml
from test_health_file import content

from gpumon.cli.check import SILENCE, check_result, device_taint_rules
from gpumon.cli.health_file import LEVELS, GpuHealth, NodeHealth
from gpumon.cli.main import main
from gpumon.health.checks import gpu
from gpumon.health.verdict import HISTORY_UNREAD
from gpumon.services.health_file import replace_file

GPUS = tuple(GpuHealth(number=n, uuid=f"GPU-{n}", bus_id=f"00000000:0{n}:00.0", minor=f"{n + 4}") for n in range(4))


def verdict(level: str, gpu: int | None = None, *, check: str = "some_check", **values: Any) -> dict[str, Any]:
    device = None if gpu is None else f"GPU-{gpu}"
    document = {
        "check": check,
        "level": level,
        "gpu": gpu,
        "device": device,
        "reason": f"It is {level}.",
        "action": "none",
        "consequences": (),
    }
    return document | {"action_text": "nothing to do", "since": "2026-11-20T17:00:00Z"} | values


def node(*verdicts: dict[str, Any], **values: Any) -> NodeHealth:
    level = max((LEVELS[verdict["level"]] for verdict in verdicts), default=LEVELS["ok"])
    return NodeHealth(level=level, verdicts=verdicts, gpus=GPUS)._replace(**values)


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 1), ("fail", 2), ("unknown", 3)])
def test_exit_codes_are_those_of_nagios(level: str, code: int) -> None:
    """0 ok, 1 warn, 2 fail, 3 unknown."""
    result = check_result(node(*([] if level == "ok" else [verdict(level, 1)])))
    assert (result.code, result.line.split(":")[0]) == (code, f"GPU {level.upper()}")


def test_a_node_whose_gpus_are_not_counted_yet_is_unknown() -> None:
    """During boot that is no verdict. A job is checked for its own GPUs only."""
    awaiting = node(missing_gpus=1)
    assert check_result(awaiting).line.startswith("GPU UNKNOWN: the driver does not count 1 expected GPU yet:")
    assert check_result(awaiting).code == 3
    assert check_result(awaiting, ignored=["gpumon_poll_slow", "no_such_check"]).code == 3
    for result in (check_result(awaiting, GPUS[:1]), check_result(awaiting, ignored=["gpu_count_mismatch"])):
        assert (result.code, result.line.endswith(" healthy.")) == (0, True)


def test_a_node_with_a_gpu_that_was_not_evaluated_yet_is_not_reported_healthy() -> None:
    """After the start, the line states why the health is unknown without a verdict."""
    result = check_result(node(level=LEVELS["unknown"]))
    assert result.code == 3
    assert result.line.startswith("GPU UNKNOWN: the agent has not evaluated its checks for every GPU yet.")


def test_no_warning_hides_an_unread_history() -> None:
    """What failed before the agent started may still fail: only a current failure has precedence."""
    past, hot = verdict("unknown", check=HISTORY_UNREAD), verdict("warn", 1)
    for job in (None, GPUS[:2]):
        result = check_result(node(past, hot), job)
        assert (result.code, result.line) == (3, "GPU UNKNOWN: It is unknown. (+1 more)")
        assert check_result(node(past, hot, verdict("fail", 0)), job).code == 2
    assert check_result(node(past, hot), ignored=[HISTORY_UNREAD]).code == 1


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"gpus": (*GPUS[:3], GPUS[3]._replace(unwatched="it does not answer (unknown)"))},
            "GPU 3: it does not answer (unknown), so its health is unknown.",
        ),
        (
            {"missing_gpus": 2},
            "the driver does not count 2 expected GPUs yet: `gpumon inventory` lists them. Check again soon.",
        ),
        ({"gpus": ()}, "the agent detects no GPU: check that the driver is loaded."),
    ],
)
def test_no_warning_hides_an_unknown_gpu(values: dict[str, Any], line: str) -> None:
    """As after a crash that lost the GPU: the warning of the crash lasts a day."""
    crashed, failed = (
        verdict("warn", check="node_unexpected_reboot"),
        verdict("fail", 0),
    )
    for job in (None, values["gpus"][3:]) if values.get("gpus") else (None,):
        result = check_result(node(crashed, **values), job)
        assert (result.code, result.line) == (3, f"GPU UNKNOWN: {line} (+1 more)")
    assert check_result(node(crashed, failed, **values)).line == "GPU FAIL: GPU 0: It is fail. (+1 more)"
    assert check_result(node(crashed, **values), GPUS[:1]).code == (1 if values != {"gpus": ()} else 3)


def test_the_line_states_fault_and_action() -> None:
    """The worst verdict, its action, and the number of others."""
    lost = verdict("fail", 3, reason="It fell off the bus.", action="reboot", action_text="reboot the node")
    result = check_result(node(verdict("warn", 1), lost, verdict("warn")))
    assert result.line == "GPU FAIL: GPU 3: It fell off the bus. Do: reboot the node. (+2 more)"


@pytest.mark.parametrize(
    ("repair", "done"), [("reboot", "The node was rebooted since"), ("reset", "The GPU was reset since")]
)
def test_a_repair_that_was_done_is_not_requested_again(repair: str, done: str) -> None:
    """Otherwise a scheduler that follows the line would repair in a loop."""
    words = "if it comes back, reboot the node"
    lost = verdict("fail", 3, reason="It fell off the bus.", action_text=words, repair=repair)
    result = check_result(node(lost))
    assert result.line == f"GPU FAIL: GPU 3: It fell off the bus. {done}: {words}."
    assert result.document(None)["verdicts"] == [lost]


def test_the_line_is_one_line_without_bars() -> None:
    """Nagios reads one line, and expects numbers behind a bar."""
    result = check_result(node(verdict("warn", reason="one | two\nthree")))
    assert result.line == "GPU WARN: one / two three."


def test_a_healthy_node_reports_its_gpu_count() -> None:
    """A node without GPUs must not look healthy."""
    assert check_result(node()).line == "GPU OK: 4 GPUs healthy."
    assert check_result(node(), GPUS[1:3]).line == "GPU OK: GPU 1, GPU 2 healthy."
    assert check_result(node(), ()).line == "GPU OK: the job has no GPU; the node is healthy."


def test_a_job_is_not_refused_for_the_fault_of_another_gpu() -> None:
    """Only for faults of its own GPUs, the node and its ports, and for what another GPU's fault does to its own."""
    link = verdict("fail", 0, check="nvlink_down", reason="A link is down.")
    count = verdict("fail", check="gpu_count_mismatch", reason="7 of 8 are here.")
    other = verdict("fail", 3, consequences=(link, count))
    port = verdict("warn", device="mlx5_0/1", reason="It flaps.")
    assert check_result(node(other), GPUS[1:2]).code == 0
    assert check_result(node(other), GPUS[:1]).line == "GPU FAIL: GPU 0: A link is down."
    assert check_result(node(other), GPUS[3:]).code == 2
    assert check_result(node(other, port), GPUS[1:2]).line == "GPU WARN: mlx5_0/1: It flaps."
    assert check_result(node(count), GPUS[1:2]).code == 2
    assert check_result(node(count), ()).code == 2
    gone = verdict("fail", device="GPU-of-before")
    assert check_result(node(gone), GPUS[1:2]).code == 0


def test_a_gpu_that_is_not_read_is_unknown() -> None:
    """Released or silent, and without a verdict yet: unknown for the node, and for a job that has this GPU."""
    gpus = (*GPUS[:3], GPUS[3]._replace(unwatched="it is released"))
    health = node(gpus=gpus)
    assert check_result(health, gpus[3:]).line == "GPU UNKNOWN: GPU 3: it is released, so its health is unknown."
    assert check_result(health).code == 3
    assert check_result(health, gpus[:3]).code == 0


def test_ignored_checks_are_left_out_with_the_verdicts_they_inhibit() -> None:
    """The silence of the GPU that such a check explains is ignored too."""
    gone = verdict("fail", 3, check="gpu_lost", consequences=(verdict("fail", 0, check="nvlink_down"),))
    health = node(gone, gpus=(*GPUS[:3], GPUS[3]._replace(unwatched="it does not answer (lost)")))
    assert check_result(health, None, ["gpu_lost"]).code == 0
    assert check_result(health, GPUS[:1], ["gpu_lost"]).code == 0
    assert check_result(health, None, ["nvlink_down"]).code == 2


def test_ignoring_another_check_does_not_excuse_a_silent_gpu() -> None:
    """A cosmetic verdict from before it was released, or became silent, does not show its current state."""
    cosmetic = verdict("warn", 3, check="gpu_persistence_off")
    health = node(cosmetic, gpus=(*GPUS[:3], GPUS[3]._replace(unwatched="it is released")))
    assert check_result(health, None, ["gpu_persistence_off"]).code == 3
    assert check_result(health, health.gpus[3:], ["gpu_persistence_off"]).code == 3


def test_what_explains_a_silent_gpu_is_in_the_table() -> None:
    """All checks of GPUs that do not answer, except for their count, which is the node's."""
    assert {each.name for each in gpu.CHECKS if each.gpu is not None} == SILENCE


def test_a_node_without_gpus_is_unknown() -> None:
    """The driver may not be loaded yet."""
    assert check_result(node(gpus=())).line == "GPU UNKNOWN: the agent detects no GPU: check that the driver is loaded."
    assert check_result(node(verdict("fail"), gpus=())).code == 2


@pytest.mark.parametrize(("level", "code"), [(None, 3), ("warn", 3), ("fail", 2)])
def test_a_stale_file_is_never_ok(level: str | None, code: int) -> None:
    """A failure still counts; a warning does not hide that the current state is unknown."""
    verdicts = [verdict(level, 1)] if level else []
    result = check_result(node(*verdicts, stale="the agent was stopped."))
    assert result.code == code
    assert "the agent was stopped." in result.line
    assert level is None or f"It is {level}." in result.line


def test_maintenance_changes_the_line_and_not_the_level() -> None:
    """Another exit code takes a flag."""
    result = check_result(node(verdict("fail", 1), maintenance="until 17:00: new DIMMs"))
    assert result.code == 2
    assert result.line == "GPU FAIL: GPU 1: It is fail. [maintenance until 17:00: new DIMMs]"


def rules(*failures: tuple[str, str | None], gpus: tuple[GpuHealth, ...] = GPUS) -> list[dict[str, Any]]:
    """Return the rules for verdicts with these levels and devices."""
    verdicts = tuple(
        {
            "check": f"check_{number}",
            "level": level,
            "gpu": None,
            "device": device,
            "reason": 'It is "bad": 1.',
            "action": "none",
        }
        for number, (level, device) in enumerate(failures)
    )
    level = max((LEVELS[name] for name, _ in failures), default=LEVELS["ok"])
    result = check_result(NodeHealth(level=level, verdicts=verdicts, gpus=gpus))
    return [rule for rule in yaml.safe_load_all(device_taint_rules(result, "n17")) if rule]


def test_a_failed_gpu_is_tainted_by_its_device_number() -> None:
    """The rule has the documented fields, selects one device, and names the check and its reason."""
    assert rules(("fail", "GPU-1")) == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": "gpumon-n17-gpu-5",
                "labels": {"app.kubernetes.io/managed-by": "gpumon", "gpumon.io/node": "n17"},
                "annotations": {"gpumon.io/reason": 'It is "bad": 1.'},
            },
            "spec": {
                "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n17", "device": "gpu-5"},
                "taint": {"key": "gpumon.io/unhealthy", "value": "check_0", "effect": "NoSchedule"},
            },
        }
    ]


def test_each_failed_gpu_has_one_rule() -> None:
    """Warnings have none, and a GPU with two failures has one rule."""
    failures = (("fail", "GPU-2"), ("warn", "GPU-0"), ("fail", "GPU-1"), ("fail", "GPU-2"))
    assert [rule["metadata"]["name"] for rule in rules(*failures)] == ["gpumon-n17-gpu-5", "gpumon-n17-gpu-6"]
    assert rules(("warn", "GPU-0")) == rules() == []


@pytest.mark.parametrize("device", [None, "mlx5_0/1"])
def test_a_failure_of_the_node_taints_all_its_gpus(device: str | None) -> None:
    """The one rule selects the pool of the node."""
    [rule] = rules(("fail", "GPU-1"), ("fail", device))
    assert rule["metadata"]["name"] == "gpumon-n17"
    assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n17"}


def test_a_gpu_of_unknown_number_has_no_rule() -> None:
    """A comment names it, because a guessed device could be another GPU."""
    assert rules(("fail", "GPU-1"), gpus=(GPUS[0], GPUS[1]._replace(minor=None))) == []


def test_the_command_prints_the_rules_of_this_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NODE_NAME is the node. The exit code is that of the line, and without a health file there is no rule."""
    monkeypatch.setenv("NODE_NAME", "gpu-17")
    path = tmp_path / "health.json"
    arguments = ["check", "--output", "devicetaint", f"--health.file={path}"]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert (out, err.startswith("GPU UNKNOWN: there is no health file")) == ("", True)
    document = content(sample_reports.lost())
    document["gpus"][3]["minor"] = "3"
    replace_file(path, json.dumps(document))
    assert main(arguments) == 2
    [rule] = yaml.safe_load_all(capsys.readouterr().out)
    assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "gpu-17", "device": "gpu-3"}


def test_a_reason_and_a_node_inject_no_yaml() -> None:
    """Whatever characters they have, they are one string each."""
    text = 'a: b}\n---\nkind: Pod # "\x1b\u2028'
    verdict = {"check": "gpu_lost", "level": "fail", "device": None, "gpu": None, "reason": text, "action": "none"}
    result = check_result(NodeHealth(level=LEVELS["fail"], verdicts=(verdict,), gpus=GPUS))
    [rule] = yaml.safe_load_all(device_taint_rules(result, text))
    assert rule["metadata"]["annotations"] == {"gpumon.io/reason": text}
    assert rule["spec"]["deviceSelector"]["pool"] == text
