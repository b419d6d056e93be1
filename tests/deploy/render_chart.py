"""Renders the Helm chart with Helm's own library, and checks the objects against the schemas of Kubernetes.

Runs in the environment of `make .venv/.deploy`. Arguments: JSON of a list of values, and files with more objects.
Prints JSON: `rendered` and `problems` of each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gpumon"
MODELS = {"keda.sh/v1alpha1": keda, "monitoring.coreos.com/v1": prometheus_operator}
VERSIONS = ("1.25", "1.31", kubernetes_validate.latest_version())


def problems(resource: Any) -> Iterator[str]:
    """Yield what is wrong with an object. An unknown field is missing from what the model of its kind writes."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    try:
        if models := MODELS.get(resource["apiVersion"]):
            model = getattr(models, resource["kind"])
            accepted = model.model_validate(resource).model_dump(by_alias=True, exclude_unset=True, mode="json")
            if accepted != resource:
                yield f"{name} has unknown fields: {accepted} instead of {resource}"
            return
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)
    except (ValueError, kubernetes_validate.ValidationError) as error:
        yield f"{name}: {error}"


def render(values: dict[str, Any]) -> dict[str, Any]:
    """Return the objects for these values, and what Helm or the schema of the values finds wrong."""
    report = helm_python.lint(CHART, values, strict=True)
    found = [message["error"] for message in report["messages"] if message["severity"] > 1]
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(values)
            rendered = chart.render(values, name="gpumon", namespace="monitoring")
    except helm_python.HelmError as error:
        return {"rendered": [], "problems": [*found, str(error)]}
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    resources = [resource for text in texts for resource in yaml.safe_load_all(text) if resource]
    return {"rendered": resources, "problems": found}


def main() -> None:
    helm_python.disable_logging()
    results = [render(values) for values in json.loads(sys.argv[1])]
    checked: dict[str, list[str]] = {}
    for result in results:
        for resource in result["rendered"]:
            text = json.dumps(resource)
            if text not in checked:
                checked[text] = list(problems(resource))
            result["problems"] += checked[text]
    for path in sys.argv[2:]:
        results[0]["problems"] += problems(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
