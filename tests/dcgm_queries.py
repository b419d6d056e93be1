"""Expressions over names of dcgm-exporter from public dashboards and rules, as Prometheus can evaluate them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_suffix(".tsv")
OWNERS = ("hpc_job", "pod", "namespace", "container", "exported_pod", "exported_namespace", "exported_container")
"""Labels of the job or pod that holds a GPU. gpumon exports them only if configured."""
_SELECTOR = re.compile(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\(|\w|:)")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_NO_METRIC = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\[[^\]]*\]|\boffset\s+\w+")
_WORDS = {"and", "or", "unless", "bool", "by", "on", "without", "ignoring", "group_left", "group_right", "inf", "nan"}
_COMPARISON = re.compile(r"[<>]=?(?!\s*bool)|[=!]=(?!\s*bool)")


@dataclass(frozen=True)
class PublicQuery:
    """One expression, with the variables of Grafana replaced by values."""

    source: str
    kind: str
    text: str
    label: str = ""
    """The label whose values a variable of Grafana lists; empty for a plain expression."""

    @property
    def selectors(self) -> tuple[tuple[str, str], ...]:
        """Return name and matchers of each vector selector."""
        parts = re.split(r'(\{[^}]*\}|"[^"]*")', _NO_METRIC.sub(" ", self.text))
        bare = "".join(part for part in parts if not part.startswith('"'))
        found = [(match[1], match[2] or "") for match in _SELECTOR.finditer(bare)]
        return tuple(each for each in found if each[0] not in _WORDS and not each[0][0].isdigit())

    @property
    def foreign(self) -> tuple[str, ...]:
        """Return the metrics that dcgm-exporter does not have."""
        return tuple(name for name, _ in self.selectors if not name.startswith("DCGM_") or name.endswith("_total"))

    @property
    def needs_owner(self) -> bool:
        """Return whether a selector requires a label of a job or pod to have a value."""
        return any(
            label in OWNERS and not _matches_empty(operator, value)
            for _, matchers in self.selectors
            for label, operator, value in _MATCHER.findall(matchers)
        )

    @property
    def is_filter(self) -> bool:
        """Return whether a comparison removes series from the result, so that it may be empty."""
        return _COMPARISON.search(re.sub(r"\{[^}]*\}", "", self.text)) is not None


def _matches_empty(operator: str, value: str) -> bool:
    if operator in {"=", "!="}:
        return (value == "") is (operator == "=")
    return (re.fullmatch(value, "") is not None) is (operator == "=~")


def public_queries(values: Mapping[str, str]) -> Iterator[PublicQuery]:
    """Yield each different expression. `values`: value of each variable by name; `.*` for others."""
    seen = set()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        source, kind, raw = line.split("\t")
        text, label = _without_grafana(_fill_variables(raw, values))
        if (text, label) not in seen:
            seen.add((text, label))
            yield PublicQuery(source, kind, text, label)


def _fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Replace variables of Grafana and of templates. Ranges become a minute, which is what the tests record."""
    text = re.sub(r"\[[^\]:]*:[^\]]*\]", "[1m:1s]", text).replace("[$__range]", "[1m]")
    text = text.replace("{{.PUE}}", "1").replace("{{.GPUJob}}", values["job"]).replace("<gpu_job>", values["job"])
    return re.sub(r"\$\{?([a-zA-Z_]\w*)\}?", lambda match: values.get(match[1], ".*"), text)


def _without_grafana(text: str) -> tuple[str, str]:
    """Return the expression in a variable's query, and the label whose values the variable lists."""
    listed = re.fullmatch(r"label_values\((.+),\s*(\w+)\s*\)", text)
    if listed:
        return listed[1], listed[2]
    inner = re.fullmatch(r"query_result\((.+)\)", text)
    return (inner[1] if inner else text), ""
