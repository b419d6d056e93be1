"""Writes docs/configuration.md and deploy/gpumon.yml from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from gpumon.config import yaml_file
from gpumon.config.configuration_sources import CONFIG_FILE_VARIABLE
from gpumon.config.load import DEFAULT_FILE
from gpumon.config.settings_table import CONFIG_FILE, SettingRow, sections, settings
from gpumon.health.table import BY_NAME, LIMITS

_HEAD = f"""# Configuration

Every setting has a default, so gpumon runs without any configuration. A flag overrides the environment, which overrides
the file, which overrides the default.

- `{CONFIG_FILE.name}` names the file, else `{CONFIG_FILE_VARIABLE}`. The default is `{DEFAULT_FILE}` if it exists.
  The file is YAML, with a mapping of keys for each section. A plain scalar is `true`, `false`, `null`, a decimal number
  or text, so a PCI bus id needs no quotes.
- In the environment, write lists as `[one, two]` and mappings as `{{name: value}}`. An empty variable is ignored, and
  so is a `GPUMON_` variable without a double underscore.
- The state directory is `$STATE_DIRECTORY` (set by systemd), else `/var/lib/gpumon` for root, else
  `$XDG_STATE_HOME/gpumon` or `~/.local/state/gpumon`.

`gpumon config check` reports every mistake with its file and line. `gpumon config show` prints the effective
configuration with the source of each setting. SIGHUP reloads the file; an invalid file changes nothing. Settings marked
with * take effect after a restart.
"""


def reference() -> str:
    """Return docs/configuration.md."""
    parts = [_HEAD]
    for section, model in sections().items():
        rows = [_line(row) for row in settings().values() if row.section == section]
        head = "| key | default | meaning | environment | flag |\n| --- | --- | --- | --- | --- |"
        parts.append("\n".join([f"## {section}\n\n{inspect.getdoc(model)}\n", head, *rows]) + "\n")
        if section == "health":
            parts.append("\n".join(_check_names()) + "\n")
    return "\n".join(parts)


def _check_names() -> Iterator[str]:
    """Yield the names that the settings of `health` may hold."""
    names = ", ".join(f"`{name}`" for name in BY_NAME)
    yield f"`health.disabled_checks` lists names of checks ([docs/alerts.md](alerts.md)): {names}."
    yield "\n`health.thresholds` holds thresholds of checks:\n"
    yield "| threshold | default | allowed | meaning |\n| --- | --- | --- | --- |"
    for limit in LIMITS.values():
        default = "unset" if limit.default is None else f"{limit.default:.15g}"
        yield f"| `{limit.name}` | {default} | {limit.range} | {limit.meaning} |"


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
    flag = f"`{row.flag}`" if row.flag else ""
    star = " *" if row.restart else ""
    return f"| `{row.key}`{star} | {default} | {row.meaning} | `{row.variable}` | {flag} |"
