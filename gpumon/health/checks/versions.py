"""CHECKS: versions that differ from what is expected, or from the neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpumon.health.check import MINUTE, Check
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.verdict import PASSED, WARN, Action, Finding, warn

OF_NODE: Mapping[str, str] = {"driver": "The driver", "nccl": "NCCL"}
"""What every job on the node uses, in words. NCCL's is that of the last run of the probe."""
OF_GPU: Mapping[str, str] = {"vbios": "VBIOS", "inforom": "InfoROM image", "gsp": "GSP firmware"}
"""Identities of a GPU, in words."""
VERSIONS = (*OF_NODE, *OF_GPU)
"""What `health.versions` may name."""


def of_node(facts: Facts) -> Finding | None:
    """Against the configuration alone, as there is only one of each; and where GPUs differ with no majority."""
    expected = {name: facts.policy.versions[name] for name in OF_NODE if name in facts.policy.versions}
    known = {name: facts.versions[name] for name in expected if name in facts.versions}
    wrong: dict[str, Any] = {name: version for name, version in known.items() if version != expected[name]}
    words = [f"{OF_NODE[name]} is {version}; {expected[name]} is expected." for name, version in wrong.items()]
    for name, groups in _undecided(facts):
        wrong[name] = ", ".join(groups)
        words.append(_tie(name, groups))
    if wrong:
        return warn(" ".join(words), Action.INSPECT, **wrong)
    return PASSED if known or not expected else None


def _undecided(facts: Facts) -> Iterator[tuple[str, Mapping[str, list[int]]]]:
    """What GPUs of one product differ in, and neither most of them nor the configuration says what is right.

    With the indices of those that have each version.
    """
    for name in OF_GPU:
        products: dict[str | None, dict[str, list[int]]] = {}
        for state in facts.gpus:
            version = getattr(state.gpu, name)
            if version is not None and state.fault is None and name not in facts.policy.versions:
                products.setdefault(state.gpu.name, {}).setdefault(version, []).append(state.index)
        for groups in products.values():
            if len(groups) > 1 and 2 * max(map(len, groups.values())) <= sum(map(len, groups.values())):
                yield name, groups


def _tie(name: str, groups: Mapping[str, list[int]]) -> str:
    """Which GPUs have which version."""
    has = (
        f"{version} on GPU{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
        for version, indices in groups.items()
    )
    return f"The {OF_GPU[name]} is {' and '.join(has)}: no majority tells which is right."


def of_gpu(gpu: GpuCase) -> Finding | None:
    """Against the configuration, else against what most GPUs of the same product have here."""
    if gpu.state.fault is not None or gpu.state.released:
        return None
    wrong = list(_differences(gpu))
    if not wrong:
        return PASSED
    versions = {name: getattr(gpu.now, name) for name, _ in wrong}
    return warn(" ".join(words for _, words in wrong), Action.INSPECT, **versions)


def _differences(gpu: GpuCase) -> Iterator[tuple[str, str]]:
    for name, called in OF_GPU.items():
        version, expected = getattr(gpu.now, name), gpu.facts.policy.versions.get(name)
        if version is None:
            continue
        if expected is not None and version != expected:
            yield name, f"Its {called} is {version}; {expected} is expected."
        elif expected is None and (most := _most(gpu, name)) is not None and most[0] != version:
            common, count, known = most
            yield name, f"Its {called} is {version}; {count} of {known} GPUs of this product here have {common}."


def _most(gpu: GpuCase, name: str) -> tuple[str, int, int] | None:
    """What more than half of the GPUs of this product have, how many those are, and of how many."""
    alike = (state.gpu for state in gpu.facts.gpus if state.gpu.name == gpu.now.name and state.fault is None)
    counted = Counter(version for one in alike if (version := getattr(one, name)) is not None)
    common, count = counted.most_common(1)[0]
    return (common, count, counted.total()) if 2 * count > counted.total() else None


CHECKS: tuple[Check, ...] = (
    Check(
        name="node_version_drift",
        levels=(WARN,),
        help="The driver or NCCL has another version than it should, or GPUs differ in firmware with no majority.",
        steps="""\
1. The verdict names what differs; `health.versions` in the configuration says what is expected.
2. Install the expected version, or correct the configuration where the change was meant.
3. NCCL's version is that of the last run of the probe: of its Python (`probe.python`), not of the jobs' images.
4. No firmware is that of most GPUs: ask the vendor which is right, and name it in `health.versions`. Then those that
   differ are told one by one (`gpu_version_drift`).
""",
        node=of_node,
        after=15 * MINUTE,
    ),
    Check(
        name="gpu_version_drift",
        levels=(WARN,),
        help="The GPU's firmware has another version than it should, or than its neighbours'.",
        steps="""\
1. `gpumon inventory` shows VBIOS, InfoROM and GSP firmware of all GPUs side by side.
2. A board that was replaced often comes with another VBIOS: have the vendor's firmware flashed, in a maintenance.
3. It is meant to be so: name the version in `health.versions`, or the check in `health.disabled_checks`.
""",
        gpu=of_gpu,
        after=15 * MINUTE,
    ),
)
