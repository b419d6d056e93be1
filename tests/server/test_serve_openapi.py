"""The OpenAPI document and the reference page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from serving import ask

from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.server import openapi


@pytest.fixture
def document(port: int) -> dict[str, Any]:
    document: dict[str, Any] = ask(port, "/openapi.json").document
    return document


def test_errors_are_problems(document: dict[str, Any]) -> None:
    """Every operation can answer with a problem, and FastAPI's own schema of 422 is absent."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    for _, path, operation in openapi.operations(document):
        assert "default" in operation["responses"], path
        for status, response in operation["responses"].items():
            if status == "default" or status >= "400":
                assert response["content"] == problem, (path, status)
    assert "HTTPValidationError" not in str(document)
    assert document["components"]["schemas"]["ProblemDetails"]["properties"]["remedy"]


def test_every_metric_row_is_described(document: dict[str, Any]) -> None:
    """The help text of the table is the description of the field: a new row needs no second description."""
    properties = document["components"]["schemas"]["GpuResponse"]["properties"]
    for name, row in rows(Gpu).items():
        assert row.help in properties[name]["description"]


def test_only_writes_need_the_token(document: dict[str, Any]) -> None:
    """Every operation that changes something needs the token, and so does the audit; no other operation does."""
    for method, path, operation in openapi.operations(document):
        assert ("security" in operation) == (method != "get" or path == "/api/v1/audit"), (method, path)


def test_page_names_every_operation(port: int, document: dict[str, Any]) -> None:
    """The reference page needs no external asset and shows every operation and schema."""
    page = ask(port, "/docs").body.decode()
    assert all(f"<code>{path}</code>" in page for _, path, _ in openapi.operations(document))
    assert all(f'id="{name}"' in page for name in document["components"]["schemas"])
    assert re.findall(r'(?:src|href)="(?!/|#)', page) == []
