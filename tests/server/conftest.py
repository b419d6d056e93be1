"""One server for a file of tests; each test begins with a healthy node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
from serving import ServedNode, serving


@pytest.fixture(scope="module")
def served_node() -> Iterator[tuple[ServedNode, int]]:
    node = ServedNode()
    with serving(node) as port:
        yield node, port


@pytest.fixture
def node(served_node: tuple[ServedNode, int]) -> ServedNode:
    fresh = ServedNode()
    for field in fields(ServedNode):
        setattr(served_node[0], field.name, getattr(fresh, field.name))
    return served_node[0]


@pytest.fixture
def port(served_node: tuple[ServedNode, int], node: ServedNode) -> int:  # noqa: ARG001 - whoever asks gets a healthy node
    return served_node[1]
