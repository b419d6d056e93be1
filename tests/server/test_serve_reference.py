"""The OpenAPI document and its page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import ask

from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.server import reference, schema, schema_health, schema_inventory, schema_probe, schema_release

SHAPES = {
    name: shape
    for module in (schema, schema_health, schema_inventory, schema_probe, schema_release)
    for name, shape in vars(module).items()
}


@pytest.fixture
def described(port: int) -> dict[str, Any]:
    document: dict[str, Any] = ask(port, "/openapi.json").document
    return document


def test_every_json_answer_has_a_valid_example(described: dict[str, Any]) -> None:
    """Examples are made by the code that answers, and have the documented shape."""
    checked = 0
    for method, path, operation in reference.operations(described):
        for status, response in operation["responses"].items():
            shown = response.get("content", {}).get("application/json")
            if shown:
                shape = shown["schema"]["$ref"].rpartition("/")[2]
                assert shown["example"], (method, path, status)
                SHAPES[shape].model_validate(shown["example"])
                checked += 1
    assert checked >= 12


def test_errors_are_described_as_they_are(described: dict[str, Any]) -> None:
    """Every operation can answer with a problem, each has an example, and FastAPI's own shape of 422 is nowhere."""
    for _, _, operation in reference.operations(described):
        for status, response in operation["responses"].items():
            if status == "default" or status >= "400":
                shown = response["content"]["application/problem+json"]
                assert shown["schema"] == {"$ref": "#/components/schemas/Problem"}
                schema.Problem.model_validate(shown["example"])
                assert status in ("default", str(shown["example"]["status"]))
    assert "HTTPValidationError" not in str(described)
    assert described["components"]["schemas"]["Problem"]["properties"]["remedy"]


def test_pages_of_text_have_an_example(port: int, described: dict[str, Any]) -> None:
    """What /metrics and the health pages say, and the reference page shows it as it is."""
    shown = {
        path: one["get"]["responses"]["200"]["content"] for path, one in described["paths"].items() if "get" in one
    }
    assert shown["/-/healthy"]["text/plain"]["example"] == "Healthy.\n" == ask(port, "/-/healthy").body.decode()
    assert shown["/-/ready"]["text/plain"]["example"] == "Ready.\n" == ask(port, "/-/ready").body.decode()
    (family,) = text_string_to_metric_families(shown["/metrics"]["text/plain"]["example"])
    assert (family.name, family.samples[0].value) == ("gpumon_gpu_temperature_celsius", 63)
    assert "# TYPE gpumon_gpu_temperature_celsius gauge" in ask(port, "/docs").body.decode()


def test_every_row_is_described(described: dict[str, Any]) -> None:
    """The help text of the table is the description of the key: a new row needs nothing here."""
    properties = described["components"]["schemas"]["Gpu"]["properties"]
    for name, row in rows(Gpu).items():
        assert row.help in properties[name]["description"]


def test_only_writes_need_the_token(described: dict[str, Any]) -> None:
    """As the page says: every operation that changes something, and no other."""
    known = [(method, "security" in one) for method, _, one in reference.operations(described)]
    assert all(needs == (method != "get") for method, needs in known)


def test_page_names_every_operation(port: int, described: dict[str, Any]) -> None:
    """The page without external assets shows what the document holds."""
    page = ask(port, "/docs").body.decode()
    assert all(f"<code>{path}</code>" in page for _, path, _ in reference.operations(described))
    assert all(f'id="{name}"' in page for name in described["components"]["schemas"])
    assert re.findall(r'(?:src|href)="(?!/|#)', page) == []
