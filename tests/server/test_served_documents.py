"""The OpenAPI document, its page, and the pages of the runbooks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from serving import ServedNode, ask, is_problem, serving

from gpumon.cli.main import main
from gpumon.health.alert_texts import alert_texts
from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.outputs.runbook import runbooks
from gpumon.server.page import operations


@pytest.fixture
def document(port: int) -> dict[str, Any]:
    document: dict[str, Any] = ask(port, "/openapi.json").document
    return document


def test_errors_are_problems(document: dict[str, Any]) -> None:
    """Every operation can answer with a problem, and FastAPI's own schema of 422 is absent."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    for _, path, operation in operations(document):
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
    for method, path, operation in operations(document):
        assert ("security" in operation) == (method != "get" or path == "/api/v1/audit"), (method, path)


def test_page_names_every_operation(port: int, document: dict[str, Any]) -> None:
    """The reference page needs no external asset and shows every operation and schema."""
    page = ask(port, "/docs").body.decode()
    assert all(f"<code>{path}</code>" in page for _, path, _ in operations(document))
    assert all(f'id="{name}"' in page for name in document["components"]["schemas"])
    assert re.findall(r'(?:src|href)="(?!/|#)', page) == []


@each_case("name", [rule.name for rule in alert_texts()])
def test_each_alert_has_a_runbook(port: int, name: str) -> None:
    """The link of an alert leads to its steps, in order."""
    rule = next(rule for rule in alert_texts() if rule.name == name)
    answer = ask(port, f"/runbooks/{name}")
    assert answer.status == 200
    assert answer.body.count(b"<li>") == len(runbooks()[rule.section].steps) >= 1
    assert ask(port, rule.runbook_url).body == answer.body


def test_the_list_links_to_each_runbook(port: int) -> None:
    page = ask(port, "/runbooks").body.decode()
    assert [name for name in runbooks() if f'href="/runbooks/{name}"' not in page] == []


def test_an_unknown_alert_is_not_found(port: int) -> None:
    """The error names the alert and one with a similar name."""
    answer = ask(port, "/runbooks/GpuLots")
    assert is_problem(answer, 404)
    assert "GpuLost" in answer.document["remedy"]


def test_a_configured_url_replaces_the_page(node: ServedNode) -> None:
    """With `alerts.runbook_url` the agent redirects to the runbook below it."""
    elsewhere = replace(node.sources(), runbook_url="https://wiki.example.com/gpumon/")
    node.sources = lambda *_: elsewhere  # type: ignore[method-assign]
    with serving(node) as port:
        answer = ask(port, "/runbooks/GpuEccUncorrectableWarning")
    assert answer.status == 307
    assert answer.headers["location"] == "https://wiki.example.com/gpumon/GpuEccUncorrectable"


def test_static_pages_need_no_agent(tmp_path: Path) -> None:
    """The pages load nothing, and the links of the index lead to files."""
    assert main(["rules", "runbooks", str(tmp_path / "web")]) == 0
    index = (tmp_path / "web" / "index.html").read_text()
    for name in runbooks():
        page = (tmp_path / "web" / name / "index.html").read_text()
        assert f'href="{name}/"' in index
        assert "/static/" not in page
        assert 'href="/' not in page
