"""`gpumon check --output devicetaint` prints manifests that Kubernetes accepts, for failed GPUs only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample_reports
import yaml
from test_health_file import content

from gpumon.cli.check_result import check_result, device_taint_rules
from gpumon.cli.health_file import LEVELS, GpuHealth, NodeHealth
from gpumon.cli.main import main
from gpumon.services.health_file import replace_file

GPUS = tuple(GpuHealth(number=n, uuid=f"GPU-{n}", bus_id=f"00000000:0{n}:00.0", minor=f"{n + 4}") for n in range(3))


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
