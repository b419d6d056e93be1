"""Writes docs/configuration.md and deploy/gpumon.yml from the table of settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from gpumon.config import yaml_file
from gpumon.config.load import CONFIG_FILE_VARIABLE, DEFAULT_FILE
from gpumon.config.settings_table import CONFIG_FILE, SettingRow, sections, settings
from gpumon.health.table import LIMITS

_HEAD = f"""# Configuration

Every setting has a default. A flag overrides the environment, which overrides the file.

- `{CONFIG_FILE.name}` names the file, else `{CONFIG_FILE_VARIABLE}`. The default is `{DEFAULT_FILE}` if it exists.
  The file is YAML, with a mapping of keys for each section. A plain scalar is `true`, `false`, `null`, a decimal number
  or text, so a PCI bus id needs no quotes.
- In the environment, `section.key` is `GPUMON_SECTION__KEY`. Write lists as `[one, two]` and mappings as
  `{{name: value}}`. An empty variable is ignored, and so is a `GPUMON_` variable without a double underscore.
- The state directory is `$STATE_DIRECTORY` (set by systemd), else `/var/lib/gpumon` for root, else
  `$XDG_STATE_HOME/gpumon` or `~/.local/state/gpumon`.

`gpumon config check` reports every mistake with its file and line. `gpumon config show` prints the effective
configuration with the source of each setting. SIGHUP reloads the file; an invalid file changes nothing. The file is a
regular file of at most 256 KiB. Settings marked with * take effect after a restart. A flag follows the meaning.
"""


def reference() -> str:
    """Return docs/configuration.md."""
    lines = [_HEAD, "| key | default | meaning |", "| --- | --- | --- |", *map(_line, settings().values())]
    return "\n".join([*lines, "", *_thresholds()]) + "\n"


def _thresholds() -> Iterator[str]:
    """Yield the table of thresholds, and where the names of checks are."""
    yield "## Checks and thresholds\n"
    yield "`health.disabled_checks` takes the names of checks in [alerts.md](alerts.md), `health.thresholds` these."
    yield "A `max_` threshold is the highest healthy value, a `min_` threshold the lowest. Without a prefix, it is"
    yield "the number of events (also per second), seconds or bytes from which there is a verdict, or a condition of a"
    yield "comparison.\n"
    yield "| threshold | default (allowed) | meaning |\n| --- | --- | --- |"
    for limit in LIMITS.values():
        default = "unset" if limit.default is None else f"{limit.default:.15g}"
        yield f"| `{limit.name}` | {default} ({_range(str(limit.range))}) | {limit.meaning} |"


def _range(words: str) -> str:
    """Return a range in symbols: `≥1` for `1 or more`, `>0, ≤1` for `above 0, at most 1`."""
    return re.sub(r"(\S+) or more", r"≥\1", words).replace("above ", ">").replace("at most ", "≤")


def sample() -> str:
    """Return deploy/gpumon.yml: every setting as a comment, with its default or an example."""
    lines = ["# Configuration of gpumon. Each comment shows the default, or an example if there is no default.", ""]
    for section, model in sections().items():
        lines += [f"{section}:  # {inspect.getdoc(model)}"]
        for row in settings().values():
            if row.section == section:
                note = f" Default: {row.default_in_words}." if row.default_in_words else ""
                lines += [f"  # {row.meaning}{note}", f"  # {row.key}: {yaml_file.flow(row.example)}"]
        lines.append("")
    return "\n".join(lines)


def _line(row: SettingRow) -> str:
    default = row.default_in_words or f"`{yaml_file.flow(row.default)}`"
    flag = f" `{row.flag}`" if row.flag else ""
    star = " *" if row.restart else ""
    return f"| `{row.section}.{row.key}`{star} | {default} | {row.meaning}{flag} |"
