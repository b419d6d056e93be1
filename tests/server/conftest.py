"""One server for a file of tests; each test begins with a healthy node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
from serving import Node, serving


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Node, int]]:
    node = Node()
    with serving(node) as port:
        yield node, port


@pytest.fixture
def node(served: tuple[Node, int]) -> Node:
    fresh = Node()
    for field in fields(Node):
        setattr(served[0], field.name, getattr(fresh, field.name))
    return served[0]


@pytest.fixture
def port(served: tuple[Node, int], node: Node) -> int:  # noqa: ARG001 - whoever asks gets a healthy node
    return served[1]
