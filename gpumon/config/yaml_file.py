"""Parses a subset of YAML to plain values and their line numbers.

PyYAML alone is not suitable. It implements YAML 1.1, which parses the PCI bus id 0000:18:00.0 as 1080.0 and `off` as
False, and if a key occurs twice it silently keeps the last value. This parser reads a plain scalar as null, true,
false, a decimal number or text. It reports other types, aliases and repeated keys as errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import yaml

from gpumon import trusted_file
from gpumon.config.configuration_error import ConfigurationProblem

Key = tuple[str, ...]
"""Path to a value: the keys of mappings and the indexes of lists that lead to it."""

_TAG = "tag:yaml.org,2002:"
_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9]*)",
    "float": r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?",
}

_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
}
_PROBLEMS = {
    "expected the node content": "a value or a closing ] is missing",
    "expected ',' or ']'": "a comma or a closing ] is missing",
    "expected ',' or '}'": "a comma or a closing } is missing",
    "expected <block end>": "the indentation is wrong, or text follows a value",
    "could not find expected ':'": "a colon after the key is missing",
    "mapping values are not allowed": "a key is not allowed here: correct the indentation, or quote text with a colon",
    "found unexpected": "a closing quote is missing",
    "found character '\\t'": "a tab is not allowed here: indent with spaces",
}
"""Text for frequent mistakes, by the beginning of PyYAML's text."""


class YamlError(ValueError):
    """Raised for YAML that is invalid or not supported, with the line if it is known."""

    def __init__(self, line: int | None, wrong: str) -> None:
        super().__init__(wrong)
        self.line = line
        self.wrong = wrong


@dataclass(slots=True)
class Parsed:
    """The values of a parsed YAML text, with the line number of each value."""

    values: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    """First line of each value, by its path."""
    repeated: list[tuple[Key, int]] = field(default_factory=list)
    """Path and line of each repetition of a key. The first occurrence of the key is used."""

    def read(self, node: yaml.Node, key: Key = ()) -> Any:
        """Return the value of a node, and add the lines of the values in it."""
        self.lines.setdefault(key, _line(node))
        if isinstance(node, yaml.MappingNode):
            return {key[-1]: self.read(child, key) for key, child in self._pairs(node, key)}
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*key, str(n))) for n, child in enumerate(node.value)]
        return _scalar(node)

    def _pairs(self, node: yaml.MappingNode, key: Key) -> Iterator[tuple[Key, yaml.Node]]:
        keys: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlError(_line(key_node), "a key must be a scalar")
            below = (*key, key_node.value)
            if key_node.value in keys:
                self.repeated.append((below, _line(key_node)))
                continue
            keys.add(key_node.value)
            self.lines[below] = _line(key_node)
            yield below, value_node


class _PlainLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - as in the base class

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
            raise YamlError(_line(event), "YAML aliases are not supported")
        return super().compose_node(parent, index)


for _name, _pattern in _WORDS.items():
    _PlainLoader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), None)


def parse(text: str) -> Parsed:
    """Parse a YAML text. Raise YamlError if it is invalid or not supported."""
    loader: _PlainLoader | None = None
    parsed = Parsed()
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is not None:
            parsed.values = parsed.read(node)
    except YamlError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "wrong syntax"
        wrong = next((own for start, own in _PROBLEMS.items() if problem.startswith(start)), problem)
        raise YamlError(mark.line + 1 if mark else None, f"is not YAML: {wrong}") from error
    # The scanner raises ValueError and OverflowError for an escape sequence of a character that does not exist.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        deep = isinstance(error, RecursionError)
        wrong = "too many nested brackets" if deep else "a character does not exist or is not allowed"
        raise YamlError(loader.line + 1 if loader else None, f"is not YAML: {wrong}") from error
    return parsed


def read(path: Path, setting: str) -> tuple[Parsed, list[ConfigurationProblem]]:
    """Return the parsed file and its problems. `setting`: name of the setting with the path, for a remedy."""
    try:
        parsed = parse(trusted_file.read_text(path))
    except OSError as error:
        wrong, remedy = f"cannot be read ({error.strerror})", f"correct {setting}"
        return Parsed(), [ConfigurationProblem(str(path), "", wrong, remedy)]
    except UnicodeDecodeError as error:
        wrong = f"is not UTF-8 at byte {error.start}"
        return Parsed(), [ConfigurationProblem(str(path), "", wrong, "save it as UTF-8")]
    except YamlError as error:
        origin = f"{path}:{error.line}" if error.line else str(path)
        return Parsed(), [ConfigurationProblem(origin, "", error.wrong, "correct the line")]
    return parsed, [
        ConfigurationProblem(
            f"{path}:{line}", ".".join(key), f"is already set in line {parsed.lines[key]}", "delete one of them"
        )
        for key, line in parsed.repeated
    ]


def flow(value: Any) -> str:
    """Return the value as one line of YAML that `parse` accepts."""
    plain = str(value) if isinstance(value, PurePath) else list(value) if isinstance(value, tuple) else value
    dumped = yaml.safe_dump([plain], default_flow_style=True, width=1 << 30, allow_unicode=True)
    return dumped.strip().removeprefix("[").removesuffix("]")


def _line(part: yaml.Node | yaml.Event) -> int:
    return 1 if part.start_mark is None else part.start_mark.line + 1


def _scalar(node: yaml.Node) -> Any:
    convert = _SCALARS.get(node.tag.removeprefix(_TAG))
    if convert is None:
        raise YamlError(_line(node), f"the tag {node.tag} is not supported")
    try:
        return convert(node.value)
    except ValueError as error:
        raise YamlError(_line(node), str(error)) from error
