"""What is written from the table of settings: the reference page and the sample file.

`python -m gpumon.config.reference [sample]` prints the page, or the sample.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from gpumon.config import yaml_file
from gpumon.config.configuration_sources import CONFIG_FILE_VARIABLE
from gpumon.config.load import DEFAULT_FILE
from gpumon.config.settings_table import CONFIG_FILE, Setting, sections, settings
from gpumon.health.table import BY_NAME, LIMITS

_HEAD = f"""# Configuration

Every setting has a default: gpumon runs without any configuration. A setting is looked for in this order, and the
first that gives it counts: flag, environment, file, default.

- The file is named by `{CONFIG_FILE.name}`, else by `{CONFIG_FILE_VARIABLE}`; else it is `{DEFAULT_FILE}`, if there is
  one. It is YAML, each section a mapping of its keys. Plain words are `true`, `false`, `null`, decimal numbers or
  text, so that a PCI bus id needs no quotes.
- In the environment, lists and mappings are written as `[one, two]` and `{{name: value}}`. An empty variable counts
  as not set. Variables with the prefix `GPUMON_` but no double underscore are not settings.
- The state directory is `$STATE_DIRECTORY` (systemd sets it), else `/var/lib/gpumon` for root, else
  `$XDG_STATE_HOME/gpumon` or `~/.local/state/gpumon`.

`gpumon config check` names everything that is wrong, with its line; `gpumon config show` prints what is in force and
where each setting came from. SIGHUP reads the file again: a file with a mistake changes nothing, and
settings marked with * change at the next start only.
"""


def reference() -> str:
    """docs/configuration.md."""
    parts = [_HEAD]
    for section, model in sections().items():
        rows = [_line(row) for row in settings().values() if row.section == section]
        head = "| key | default | meaning | environment | flag |\n| --- | --- | --- | --- | --- |"
        parts.append("\n".join([f"## {section}\n\n{inspect.getdoc(model)}\n", head, *rows]) + "\n")
        if section == "health":
            parts.append("\n".join(_of_checks()) + "\n")
    return "\n".join(parts)


def _of_checks() -> Iterator[str]:
    """What the names of `health` may be."""
    names = ", ".join(f"`{name}`" for name in BY_NAME)
    yield f"`health.disabled_checks` lists names of checks ([docs/health.md](health.md)): {names}."
    yield "\n`health.thresholds` holds numbers of checks:\n"
    yield "| threshold | default | allowed | meaning |\n| --- | --- | --- | --- |"
    for limit in LIMITS.values():
        default = "unset" if limit.default is None else f"{limit.default:.15g}"
        yield f"| `{limit.name}` | {default} | {limit.range} | {limit.meaning} |"


def sample() -> str:
    """deploy/gpumon.yml: every setting with its default, or an example, as a comment."""
    lines = ["# Configuration of gpumon. Each line shows a default, or an example where there is none.", ""]
    for section, model in sections().items():
        lines += [f"{section}:  # {inspect.getdoc(model)}"]
        for row in settings().values():
            if row.section == section:
                note = f" Default: {row.default_in_words}." if row.default_in_words else ""
                lines += [f"  # {row.meaning}{note}", f"  # {row.key}: {yaml_file.flow(row.example)}"]
        lines.append("")
    return "\n".join(lines)


def _line(row: Setting) -> str:
    default = row.default_in_words or f"`{yaml_file.flow(row.default)}`"
    flag = f"`{row.flag}`" if row.flag else ""
    star = " *" if row.restart else ""
    return f"| `{row.key}`{star} | {default} | {row.meaning} | `{row.variable}` | {flag} |"


if __name__ == "__main__":
    sys.stdout.write(sample() if sys.argv[1:] == ["sample"] else reference())
