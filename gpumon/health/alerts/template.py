"""Texts of alerts, written once: `{uuid}` is a label, `{value:...}` the value; filled here, or made Prometheus' own.

The value is written as `{value:.1f}` (any number of decimals), `{value:humanize}` (1.5G) or `{value:ratio}` (25%).
"""

from __future__ import annotations

import math
from functools import lru_cache
from string import Formatter

from gpumon.model.reading import Labels


def filled(template: str, labels: Labels, value: float) -> str:
    """The text of one alert. A label that is not there is empty, as in Prometheus."""
    known = dict(labels)
    return "".join(
        text + ("" if name is None else _shown(value, style) if name == "value" else known.get(name, ""))
        for text, name, style in _parsed(template)
    )


def for_prometheus(template: str) -> str:
    """The same text as a template of Prometheus."""
    return "".join(
        text + ("" if name is None else _placeholder(name, style)) for text, name, style in _parsed(template)
    )


def for_reader(template: str) -> str:
    """The same text with the names of what will be filled in, as Markdown."""
    return "".join(text + ("" if name is None else f"*{name}*") for text, name, _ in _parsed(template))


@lru_cache(maxsize=256)
def _parsed(template: str) -> tuple[tuple[str, str | None, str], ...]:
    return tuple((text, name, style or "") for text, name, style, _ in Formatter().parse(template))


def _placeholder(name: str, style: str) -> str:
    if name != "value":
        return f"{{{{ $labels.{name} }}}}"
    if style == "humanize":
        return "{{ $value | humanize }}"
    if style == "ratio":
        return "{{ $value | humanizePercentage }}"
    return f'{{{{ printf "%{style}" $value }}}}'


def _shown(value: float, style: str) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if style == "humanize":
        return _humanized(value)
    if style == "ratio":
        return f"{value * 100:.4g}%"
    return format(value, style)


def _humanized(value: float) -> str:
    if value == 0 or abs(value) >= 1:
        for prefix in ("", "k", "M", "G", "T", "P", "E", "Z"):
            if abs(value) < 1000:
                return f"{value:.4g}{prefix}"
            value /= 1000
        return f"{value:.4g}Y"
    for prefix in ("m", "u", "n", "p", "f", "a", "z"):
        value *= 1000
        if abs(value) >= 1:
            return f"{value:.4g}{prefix}"
    return f"{value * 1000:.4g}y"
