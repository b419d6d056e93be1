"""Reads host names: Slurm node names such as gpu[001-032,040], host lists and Ansible inventories."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpumon.cli.errors import UserError

MAX_HOSTS = 100_000
"""Maximum number of hosts that one expression may name."""
ALL = "all"
"""Group that Ansible has in every inventory: all hosts."""
_WORD = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_IPV6 = re.compile(r"\[[\da-fA-F:.]*:[\da-fA-F:.]*:[\da-fA-F.]*\]:\d+|\[[\da-fA-F:]*::[\da-fA-F:.]*\]")

Variables = Mapping[str, str]
Groups = Mapping[str, Any]
"""Groups by name, each with its `hosts` and `children`, as in an inventory in YAML."""


def expand(expression: str) -> list[str]:
    """Return the host names of a Slurm or Ansible expression, such as gpu[001-032,040],login or gpu[01:32].

    Raise UserError if the expression is invalid.
    """
    if left := _WORD.sub("", expression).strip(", \t\n"):
        raise UserError(f"{expression!r} is not a list of hosts, because of {left!r}: write it as gpu[001-032,040]")
    return [name for word in _WORD.findall(expression) for name in _names(word)]


def _names(word: str) -> Iterator[str]:
    if _IPV6.fullmatch(word):
        return iter([word])
    parts = re.split(r"\[([^\[\]]*)\]", word)  # odd parts were in brackets
    choices = [_numbers(part, word) if number % 2 else [part] for number, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MAX_HOSTS:
        raise UserError(f"{word!r} names more than {MAX_HOSTS} hosts: check its ranges")
    return map("".join, itertools.product(*choices))


def _numbers(brackets: str, word: str) -> list[str]:
    """Return the numbers of the ranges between two brackets, padded as the first, or letters as in Ansible's a:c."""
    numbers: list[str] = []
    for text in brackets.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:[-:](\d{1,9}))?(?::([1-9]\d{0,8}))?", text.strip())
        if re.fullmatch("[a-z]:[a-z]", text):
            numbers += map(chr, range(ord(text[0]), ord(text[2]) + 1))
            continue
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if bounds is None or not 0 <= last - first < MAX_HOSTS:
            raise UserError(f"{text!r} in {word!r} is not a range of numbers: write it as gpu[001-032,040]")
        numbers += [str(number).zfill(len(bounds[1])) for number in range(first, last + 1, int(bounds[3] or 1))]
    return numbers


def read_inventory(text: str, source: str, group: str = ALL) -> dict[str, Variables]:
    """Return the variables of each host of a group by host name, from a host list or an Ansible inventory.

    The inventory is INI, YAML, or JSON of `ansible-inventory --list`. Raise UserError, which names `source`, if the
    text is invalid or has no such group.
    """
    try:
        if text.lstrip().startswith("{"):
            groups: Groups = json.loads(text)
        elif re.search(r"^[\w.-]+:\s*$", text, re.MULTILINE):
            groups = yaml.safe_load(text)
        else:
            groups = _of_lines(text)
        return _hosts(groups, group)
    except (ValueError, yaml.YAMLError, AttributeError, TypeError, UserError) as error:
        raise UserError(f"cannot read hosts from {source}: {' '.join(str(error).split())}") from error


def _of_lines(text: str) -> Groups:
    """Return the groups of a host list, or of an inventory in INI format.

    A line has host names, followed by their variables as name=value.
    """
    name, kind = "ungrouped", "hosts"
    groups: dict[str, dict[str, dict[str, Any]]] = {name: {kind: {}}}
    for line in text.splitlines():
        words = shlex.split("" if line.lstrip().startswith(";") else line, comments=True)
        if heading := re.fullmatch(r"\[([\w.-]+)(?::(\w+))?\]", " ".join(words)):
            name, kind = heading[1], heading[2] or "hosts"
            groups.setdefault(name, {}).setdefault(kind, {})
        elif words:
            hosts = " ".join(word for word in words if "=" not in word)
            groups[name][kind][hosts] = dict(word.split("=", 1) for word in words if "=" in word)
    return groups


def _hosts(groups: Groups, wanted: str) -> dict[str, Variables]:
    """Return, by host name, the variables of the hosts of a group and of its child groups.

    A group contains its child groups (YAML) or their names (INI, JSON).
    """
    listed = groups.get("_meta", {}).get("hostvars", {})
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    variables: dict[str, dict[str, str]] = {}
    waiting = list(groups.items())
    for group, content in waiting:  # the loop appends the child groups of each group
        hosts, children = (content or {}).get("hosts") or {}, (content or {}).get("children") or {}
        for expression in hosts:
            own = hosts[expression] if isinstance(hosts, dict) else listed.get(expression)
            names = expand(str(expression))
            for name in names:
                variables.setdefault(name, {}).update({key: str(value) for key, value in (own or {}).items()})
            members[group] = [*members.get(group, ()), *names]
        below[group] = [*below.get(group, ()), *children]
        waiting += children.items() if isinstance(children, dict) else ()
    if wanted == ALL:
        return dict(variables)
    if wanted not in below:
        raise UserError(f"there is no group {wanted!r}, but: {', '.join(sorted(set(below) - {'_meta'}))}")
    chosen = [wanted]
    for group in chosen:  # the loop appends the child groups of each group
        chosen += [child for child in below.get(group, ()) if child not in chosen]
    return {name: variables[name] for group in chosen for name in members.get(group, ())}
