"""CHECKS: versions that differ from the expected ones, or between GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpumon.health.check_row import MINUTE, Check
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.verdict import PASSED, WARN, Action, Finding, warn

OF_NODE: Mapping[str, str] = {"driver": "The driver", "nccl": "NCCL"}
"""Printed name, by key, of node software whose version is checked. NCCL's version is that of the last probe run."""
OF_GPU: Mapping[str, str] = {"vbios": "VBIOS", "inforom": "InfoROM image", "gsp": "GSP firmware"}
"""Printed name, by key, of the GPU firmware whose version is checked."""
VERSIONS = (*OF_NODE, *OF_GPU)
"""Keys that `health.versions` accepts."""


def of_node(facts: Facts) -> Finding | None:
    """Return a warning if driver or NCCL do not have the configured version, or a firmware has no majority."""
    expected = {name: facts.policy.versions[name] for name in OF_NODE if name in facts.policy.versions}
    reported = {name: facts.versions[name] for name in expected if name in facts.versions}
    wrong: dict[str, Any] = {name: version for name, version in reported.items() if version != expected[name]}
    words = [f"{OF_NODE[name]} is {version}; {expected[name]} is expected." for name, version in wrong.items()]
    for name, groups in _ties(facts):
        wrong[name] = ", ".join(groups)
        has = (f"{version} on GPU{'s' * (',' in gpus)} {gpus}" for version, gpus in groups.items())
        words.append(f"The {OF_GPU[name]} is {' and '.join(has)}, without a majority.")
    if wrong:
        return warn(" ".join(words), Action.FIX, **wrong)
    return PASSED if reported or not expected else None


def _ties(facts: Facts) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield (firmware, GPU indexes by version) for each firmware without a configured version or a majority."""
    for name in OF_GPU:
        products: dict[str | None, dict[str, list[int]]] = {}
        for state in facts.gpus:
            version = getattr(state.gpu, name)
            if version is not None and state.fault is None and name not in facts.policy.versions:
                products.setdefault(state.gpu.name, {}).setdefault(version, []).append(state.index)
        for groups in products.values():
            if len(groups) > 1 and 2 * max(map(len, groups.values())) <= sum(map(len, groups.values())):
                yield name, {version: ", ".join(map(str, indices)) for version, indices in groups.items()}


def of_gpu(gpu: GpuCase) -> Finding | None:
    """Return a warning if a firmware has another version than the configured one, or than most GPUs of the product."""
    if gpu.state.fault is not None or gpu.state.released:
        return None
    wrong = list(_differences(gpu))
    if not wrong:
        return PASSED
    versions = {name: getattr(gpu.now, name) for name, _ in wrong}
    return warn(" ".join(words for _, words in wrong), Action.FIX, **versions)


def _differences(gpu: GpuCase) -> Iterator[tuple[str, str]]:
    for name, called in OF_GPU.items():
        version, expected = getattr(gpu.now, name), gpu.facts.policy.versions.get(name)
        if version is None:
            continue
        if expected is not None and version != expected:
            yield name, f"Its {called} is {version}; {expected} is expected."
        elif expected is None and (majority := _majority(gpu, name)) is not None and majority[0] != version:
            common, count, total = majority
            yield name, f"Its {called} is {version}; {count} of {total} GPUs of this product have {common}."


def _majority(gpu: GpuCase, name: str) -> tuple[str, int, int] | None:
    """Return (version, number of GPUs with it, number of all) for the version that most GPUs of the product have."""
    same_product = (state.gpu for state in gpu.facts.gpus if state.gpu.name == gpu.now.name and state.fault is None)
    counted = Counter(version for each in same_product if (version := getattr(each, name)) is not None)
    common, count = counted.most_common(1)[0]
    return (common, count, counted.total()) if 2 * count > counted.total() else None


CHECKS: tuple[Check, ...] = (
    Check(
        name="node_version_drift",
        levels=(WARN,),
        help="Driver or NCCL do not have the expected version, or GPUs differ in firmware without a majority.",
        steps="""\
1. The verdict names the difference; `health.versions` sets the expected versions.
2. Install the expected version, or update the configuration if the change is intended.
3. NCCL's version is that of the last run of the probe (`probe.python`), not of the jobs' images.
4. If no firmware has a majority, ask the vendor which is right and set it in `health.versions`: GPUs that differ then
   have their own verdict (`gpu_version_drift`).
""",
        node=of_node,
        after=15 * MINUTE,
    ),
    Check(
        name="gpu_version_drift",
        levels=(WARN,),
        help="The GPU's firmware does not have the expected version, or its neighbours' version.",
        steps="""\
1. `gpumon inventory` shows VBIOS, InfoROM and GSP firmware of all GPUs side by side.
2. A replaced board often has another VBIOS: have the vendor's firmware flashed, in a maintenance window.
3. If intended: set the version in `health.versions`, or disable the check (`health.disabled_checks`).
""",
        gpu=of_gpu,
        after=15 * MINUTE,
    ),
)
