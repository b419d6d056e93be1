"""Renders DeviceTaintRules of Kubernetes for failed GPUs: `gpumon check --output devicetaint`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpumon.cli.check_result import CheckResult
from gpumon.cli.health_file import LEVELS, Document
from gpumon.health.verdict import FAIL

DRIVER = "gpu.nvidia.com"
"""Name of the DRA driver whose devices are tainted. It names each pool after its node, and a GPU `gpu-<minor>`."""
MAX_LABEL = 63
RULE = """\
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata:
  name: {name}
  labels: {{app.kubernetes.io/managed-by: gpumon, gpumon.io/node: {label}}}
  annotations: {{gpumon.io/reason: {reason}}}
spec:
  deviceSelector: {selector}
  taint: {{key: gpumon.io/unhealthy, value: {check}, effect: NoSchedule}}
"""


def device_taint_rules(result: CheckResult, node: str) -> str:
    """Return, as YAML, a DeviceTaintRule for each failed GPU. `node` is the name of the node in Kubernetes.

    If the node or a port has failed, return one rule for all GPUs of the node; if nothing has failed, an empty string.
    """
    failed = [verdict for verdict in result.verdicts if LEVELS[verdict["level"]] is FAIL]
    uuids = {gpu.uuid for gpu in result.health.gpus}
    whole = next((verdict for verdict in failed if verdict["device"] not in uuids), None)
    return "---\n".join(_gpu_rules(result, failed, node) if whole is None else [_rule(whole, node, None)])


def _gpu_rules(result: CheckResult, failed: list[Document], node: str) -> Iterator[str]:
    first = {verdict["device"]: verdict for verdict in reversed(failed)}
    for gpu in result.health.gpus:
        if gpu.uuid in first and gpu.minor is None:
            yield f"# {gpu.name} ({gpu.uuid}) has failed. It has no rule, because its device number was never read.\n"
        elif gpu.uuid in first:
            yield _rule(first[gpu.uuid], node, f"gpu-{gpu.minor}")


def _rule(verdict: Document, node: str, device: str | None) -> str:
    selector = {"driver": DRIVER, "pool": node} | ({} if device is None else {"device": device})
    values = {
        "name": "-".join(filter(None, ("gpumon", node, device))),
        "label": node[:MAX_LABEL].rstrip("-."),
        "reason": verdict["reason"],
        "selector": selector,
        "check": verdict["check"],
    }
    return RULE.format_map({name: json.dumps(value) for name, value in values.items()})  # JSON is valid YAML
