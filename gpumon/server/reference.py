"""The OpenAPI document: what FastAPI derives from the routes, with examples, and errors as they really are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpumon.health.acknowledge import Acknowledged, Asked
from gpumon.model.release import Answer, Holder
from gpumon.outputs import document, events, health
from gpumon.outputs.hold import hold as held
from gpumon.outputs.inventory import inventory as inventory_document
from gpumon.outputs.maintenance import maintenance as maintained
from gpumon.outputs.prometheus import Renderer
from gpumon.probe.core.result import ProbeRequest
from gpumon.probe.core.state import ProbeState
from gpumon.server import (
    acknowledge,
    example,
    guard,
    hold,
    inventory,
    maintenance,
    metrics,
    parameters,
    probe,
    release,
    runs,
    schema,
)
from gpumon.server import (
    responses as answer,
)
from gpumon.server.problem import MEDIA_TYPE, Problem
from gpumon.state import expected_gpus
from gpumon.state.report import Report

Document = dict[str, Any]
_MAINTENANCE = "/api/v1/maintenance"
_HOLD = "/api/v1/probes/hold"
_INVENTORY = (("get", "/api/v1/inventory", "200"), ("post", "/api/v1/inventory/accept", "200"))
_RELEASE = tuple((method, "/api/v1/release", "200") for method in ("get", "post", "delete"))
GPU, RUN, NAME = "9", "4e1f0c7a92d3", "allreduce"
"""In the examples of problems."""
DESCRIPTION = """\
What the agent on this GPU host knows. Everything is read from one frozen report: no request causes a driver call.

Keys of readings are the names of the metrics without their prefix, unit included. A reading that the GPU or its driver
cannot give is null, never 0. Moments are RFC 3339 in UTC. Errors are problem+json with a remedy. What starts work or
changes something needs `Authorization: Bearer <token>`, from this host too."""


@cache
def examples() -> Mapping[tuple[str, str, str], Any]:
    """By method, path and status. Made by the code that answers, so that they cannot be out of date."""
    report, stamp = example.report(), example.STAMP
    run = document.probe_result(example.run())
    return {
        ("get", "/api/v1/report", "200"): document.whole(report, stamp),
        ("get", "/api/v1/node", "200"): document.node(report, stamp),
        ("get", "/api/v1/gpus", "200"): {"gpus": document.gpus(report)},
        ("get", "/api/v1/gpus/{gpu}", "200"): document.gpu(report.gpus[0]),
        ("get", "/api/v1/links", "200"): {"links": document.links(report)[:1]},
        ("get", "/api/v1/ports", "200"): {"ports": document.ports(report)},
        ("get", "/api/v1/events", "200"): {"events": events.documents(report, report.events), "complete": True},
        ("get", "/api/v1/health", "200"): health.health(report, stamp.boot),
        ("post", "/api/v1/health/ack", "200"): acknowledge.told(Acknowledged(cleared=report.health.verdicts), report),
        **dict.fromkeys(_INVENTORY, inventory_document(example.inventoried())),
        ("get", "/api/v1/alerts", "200"): {"alerts": [document.alert(one) for one in report.alerts]},
        ("get", "/api/v1/probes", "200"): {"probes": [run], "complete": True},
        ("get", "/api/v1/probes/{run}", "200"): run,
        ("get", "/api/v1/probes/{run}", "202"): document.probe_running(example.measuring()),
        ("get", "/probe/{name}", "200"): document.probe(report, stamp),
        ("get", "/probe/{name}", "202"): document.probe(_before(), stamp),
        ("post", "/probe/{name}", "202"): {"id": run["id"], "accepted": True},
        **dict.fromkeys(_RELEASE, document.release(example.released(), stamp)),
        ("get", _MAINTENANCE, "200"): {"maintenance": maintained(example.maintained())},
        ("post", _MAINTENANCE, "200"): {"maintenance": maintained(example.maintained()), "stored": True},
        ("delete", _MAINTENANCE, "200"): {"maintenance": None, "stored": True},
        ("get", _HOLD, "200"): {"hold": held(example.held())},
        ("post", _HOLD, "200"): {"hold": held(example.held()), "stored": True},
        ("delete", _HOLD, "200"): {"hold": None, "stored": True},
        ("get", "/metrics", "200"): _family(report, "gpumon_gpu_temperature_celsius"),
        ("get", "/-/healthy", "200"): metrics.HEALTHY,
        ("get", "/-/ready", "200"): metrics.READY,
    }


@cache
def problems() -> Mapping[tuple[str, str, str], Problem]:
    """What is refused, by method, path and status; made by the code that refuses."""
    report, stamp = example.report(), example.STAMP
    busy = ProbeRequest(
        id=RUN, accepted=False, reason="busy", hint="Processes hold GPU 0. Run again when the GPUs are free."
    )
    return {
        ("get", "/api/v1/gpus/{gpu}", "404"): parameters.unknown_gpu(report, GPU),
        ("get", "/api/v1/probes/{run}", "404"): runs.unknown_run(RUN),
        ("get", "/-/ready", "503"): metrics.not_ready(),
        ("get", "/api/v1/probes", "404"): parameters.unknown_probe("all_reduce"),
        ("get", "/probe/{name}", "404"): parameters.unknown_probe("all_reduce"),
        ("post", "/probe/{name}", "404"): parameters.unknown_probe("all_reduce"),
        ("get", "/probe/{name}", "503"): probe.not_so(probe.NOTHING_YET, document.probe(_before(), stamp)),
        ("post", "/probe/{name}", "401"): guard.token_needed(),
        ("post", "/probe/{name}", "403"): guard.other_origin("http://elsewhere.example"),
        ("post", "/probe/{name}", "409"): probe.refused(busy, {}),
        ("post", "/probe/{name}", "503"): answer.no_answer(probe.PATIENCE),
        **_release_problems(report, stamp),
        **_maintenance_problems(),
        **_hold_problems(),
        **_inventory_problems(),
        **_acknowledge_problems(report),
    }


def _acknowledge_problems(report: Report) -> Mapping[tuple[str, str, str], Problem]:
    path = "/api/v1/health/ack"
    kept = tuple((one, "It is so now.") for one in report.health.verdicts)
    return {
        ("post", path, "400"): acknowledge.unclear(both=False),
        ("post", path, "401"): guard.token_needed(),
        ("post", path, "403"): guard.other_origin("http://elsewhere.example"),
        ("post", path, "404"): acknowledge.unknown(Asked(check="nvlink_down"), report),
        ("post", path, "409"): acknowledge.still_so(Acknowledged(kept=kept), report),
        ("post", path, "503"): answer.no_answer(acknowledge.PATIENCE),
    }


def _inventory_problems() -> Mapping[tuple[str, str, str], Problem]:
    path = "/api/v1/inventory/accept"
    down = replace(example.report(), notices={"driver": "DriverNotLoaded: load it with modprobe nvidia"})
    down = replace(down, node=replace(down.node, gpus_visible=None), memory=replace(down.memory, recalled=True))
    return {
        ("post", path, "401"): guard.token_needed(),
        ("post", path, "403"): guard.other_origin("http://elsewhere.example"),
        ("post", path, "409"): inventory.refused(expected_gpus.unacceptable(down) or Answer()),
        ("post", path, "503"): answer.no_answer(inventory.PATIENCE),
    }


def _maintenance_problems() -> Mapping[tuple[str, str, str], Problem]:
    path = "/api/v1/maintenance"
    refusal = Answer(refused="A maintenance needs a reason.", remedy="Say why in a few words.")
    every = {
        "401": guard.token_needed(),
        "403": guard.other_origin("http://elsewhere.example"),
        "503": answer.no_answer(release.PATIENCE),
    }
    return {
        **{(method, path, status): one for method in ("post", "delete") for status, one in every.items()},
        ("post", path, "400"): maintenance.refused(refusal),
    }


def _hold_problems() -> Mapping[tuple[str, str, str], Problem]:
    refusal = "9e+06 s is not between 0 and probe.hold_max_seconds, which is 604800."
    rank = Holder(pid=4711, words="process 4711 of the probe", stuck=True)
    every = {
        "401": guard.token_needed(),
        "403": guard.other_origin("http://elsewhere.example"),
        "503": answer.no_answer(release.PATIENCE),
    }
    return {
        **{(method, _HOLD, status): one for method in ("post", "delete") for status, one in every.items()},
        ("post", _HOLD, "400"): hold.refused(Answer(refused=refusal, remedy="Ask for less.")),
        ("post", _HOLD, "409"): hold.not_free(Answer(holders=(rank,)), {"hold": held(example.held())}),
        ("delete", _HOLD, "400"): hold.refused(Answer(refused="The agent is stopping.", remedy="Ask again later.")),
    }


def _release_problems(report: Report, stamp: document.Stamp) -> Mapping[tuple[str, str, str], Problem]:
    path, after = "/api/v1/release", document.release(example.released(), stamp)
    stuck = Holder(pid=4711, words="sampler 4711 in nvmlDeviceGetTemperature on 00000000:18:00.0", stuck=True)
    refusal = Answer(refused="7200 s is not between 0 and release.max_seconds, which is 1800.", remedy="Ask for less.")
    every = {
        "401": guard.token_needed(),
        "403": guard.other_origin("http://elsewhere.example"),
        "404": parameters.unknown_gpu(report, GPU),
        "503": answer.no_answer(release.PATIENCE),
    }
    return {
        **{(method, path, status): one for method in ("post", "delete") for status, one in every.items()},
        ("post", path, "400"): release.refused(refusal),
        ("post", path, "409"): release.held(Answer(holders=(stuck,)), after),
        ("delete", path, "409"): release.marked(after),
    }


def _before() -> Report:
    """Before any run of the probe."""
    report = example.report()
    return replace(report, probe=ProbeState(next_run=report.probe.next_run))


def _family(report: Report, name: str) -> str:
    lines = Renderer(lambda: report).render(report).splitlines(keepends=True)
    return "".join(line for line in lines if name in line)


def install(app: FastAPI) -> None:
    """Replace the document that FastAPI would make."""
    app.openapi = cache(lambda: _document(app))  # type: ignore[method-assign]


def operations(described: Document) -> list[tuple[str, str, Document]]:
    """Method, path and operation, in the order of the routes."""
    return [(method, path, one) for path, item in described["paths"].items() for method, one in item.items()]


def _document(app: FastAPI) -> Document:
    described = get_openapi(title="gpumon", version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = described["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = schema.Problem.model_json_schema()
    described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for method, path, operation in operations(described):
        _complete(method, path, operation["responses"])
    return described


def _complete(method: str, path: str, responses: dict[str, Document]) -> None:
    responses.pop("422", None)
    responses["default"] = {"description": "An error, with a remedy."}
    for status, response in responses.items():
        response["description"] = response["description"].replace("Successful Response", "The answer.")
        if status == "default" or status >= "400":
            problem = problems().get((method, path, status), guard.not_this_host("elsewhere.example"))
            shape = {"$ref": "#/components/schemas/Problem"}
            shown = problem.document(path.format(gpu=GPU, run=RUN, name=NAME))
            response["content"] = {MEDIA_TYPE: {"schema": shape, "example": shown}}
        else:
            (content,) = response["content"].values()
            content["example"] = examples()[method, path, status]
