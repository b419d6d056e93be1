"""/api/v1: bodies as the documents have them, filters, errors with a remedy."""

from __future__ import annotations

from dataclasses import replace

import example_node as example
import example_parts
import pytest
import sample_reports as samples
from each_case import each_case
from sample_reports import report_document
from serving import BEARER, ServedNode, ask, is_problem

from gpumon.outputs.responses.base import ResponseModel
from gpumon.outputs.responses.probes import RunningResponse
from gpumon.probe.core.state import ProbeState

STAMP = samples.STAMP
REPORTS = {
    "healthy": samples.healthy(),
    "simulated": samples.simulated_report(),
    "troubled": samples.troubled_node(),
    "stuck": samples.stuck(),
    "without_driver": samples.without_driver(),
    "partitioned": samples.partitioned_node(),
    "grace": samples.grace(),
    "disconnected": samples.disconnected_node(),
    "excluding": samples.excluding(3),
    "without_gpus": samples.without_gpus(),
    "before_any_run": samples.before_any_run(samples.healthy(16)),
}


PATH_PARAMETERS = {"gpu": "0", "run": example.run().id, "name": "allreduce"}


def models(base: type[ResponseModel] = ResponseModel) -> dict[str, type[ResponseModel]]:
    """Return all response models by name. A model with metric rows is derived from the class of its name."""
    found = {base.__name__: base}
    for model in base.__subclasses__():
        found |= models(model)
    return found


@each_case("name", sorted(REPORTS))
def test_every_route_answers_with_its_model(node: ServedNode, port: int, name: str) -> None:
    """Whatever the state of the node, every GET route answers, and its body is valid for the model it declares."""
    node.report = REPORTS[name]
    by_name, checked = models(), set()
    for path, operations in ask(port, "/openapi.json").document["paths"].items():
        answer = ask(port, path.format(**PATH_PARAMETERS)) if "get" in operations else None
        if answer is None or (answer.status == 404 and "{" in path):
            continue
        content = operations["get"]["responses"][str(answer.status)]["content"]
        if "application/json" in content:
            model = by_name[content["application/json"]["schema"]["$ref"].rpartition("/")[2]]
            model.model_validate_json(answer.body)
            checked.add(path)
    assert len(checked) >= 13
    assert [ask(port, path).status for path in ("/", "/live", "/docs")] == [200] * 3


def test_parts_of_the_report_are_the_routes(node: ServedNode, port: int) -> None:
    """Each part of /api/v1/report is what its own route answers."""
    node.report = samples.troubled_node()
    whole = ask(port, "/api/v1/report").document
    assert whole == report_document(node.report, replace(STAMP, host="gpu-17"))
    for part in ("gpus", "links", "ports", "alerts", "events", "probes"):
        assert ask(port, f"/api/v1/{part}").document[part] == whole[part], part
    for part in ("node", "health"):
        assert ask(port, f"/api/v1/{part}").document == whole[part], part
    assert ask(port, "/probe/allreduce").document == whole["probe"]


def test_gpu_is_found_by_index_and_by_uuid(port: int) -> None:
    """Both name the same GPU."""
    by_index, by_uuid = ask(port, "/api/v1/gpus/3"), ask(port, f"/api/v1/gpus/{example_parts.uuid(3)}")
    assert by_index.document["uuid"] == example_parts.uuid(3)
    assert by_index.body == by_uuid.body


def test_unknown_gpu_lists_the_existing_ones(node: ServedNode, port: int) -> None:
    """The answer has all that a corrected request needs."""
    node.report = samples.healthy(2)
    answer = ask(port, "/api/v1/gpus/GPU-nope")
    assert is_problem(answer, 404)
    assert [each["gpu"] for each in answer.document["gpus"]] == [0, 1]
    assert example_parts.uuid(1) in answer.document["remedy"]
    assert answer.document["instance"] == "/api/v1/gpus/GPU-nope"


def test_lost_gpu_is_not_a_404(node: ServedNode, port: int) -> None:
    node.report = samples.lost(3)
    assert ask(port, "/api/v1/gpus/3").document["state"] == "lost"


@pytest.mark.parametrize(
    ("query", "rules"),
    [
        ("state=pending", {"GpuIdle"}),
        ("severity=critical", {"GpuLost", "GpuStuck", "GpuHwSlowdown", "NvlinkDown"}),
        ("severity=info&state=firing", {"GpumonKernelLogLost"}),
        ("severity=info&state=resolved", set()),
    ],
)
def test_alerts_are_filtered(node: ServedNode, port: int, query: str, rules: set[str]) -> None:
    """By state and severity."""
    node.report = samples.troubled_node()
    assert {each["rule"] for each in ask(port, f"/api/v1/alerts?{query}").document["alerts"]} == rules


def test_links_of_one_gpu(port: int) -> None:
    """By index or uuid."""
    links = ask(port, f"/api/v1/links?gpu={example_parts.uuid(4)}").document["links"]
    assert {(each["gpu"], each["link"]) for each in links} == {(4, link) for link in range(18)}
    assert is_problem(ask(port, "/api/v1/links?gpu=99"), 404)


@each_case(
    ("query", "status", "named"),
    [
        ("events?limit=0", 422, "limit"),
        ("events?limit=1001", 422, "limit"),
        ("probes?limit=1001", 422, "limit"),
        ("report?x", 422, "x"),
        ("node?bogus=1", 422, "bogus"),
        ("gpus?bogus=1", 422, "bogus"),
        ("gpus/0?bogus=1", 422, "bogus"),
        ("probes/none?bogus=1", 422, "bogus"),
        ("events?limit=many", 422, "limit"),
        ("events?xid=-1", 422, "xid"),
        ("events?gpus=1", 422, "gpus"),
        ("events?kind=ecc", 422, "kind"),
        ("events?source=dmesg", 422, "source"),
        ("events?severity=fatal", 422, "severity"),
        ("events?until=tomorrow", 400, "until"),
        ("events?xid=79&kind=sxid", 400, "xid"),
        ("events?xid=79&sxid=12028", 400, "sxid"),
        ("events?gpu=0&kind=overrun", 400, "gpu"),
        ("alerts?state=broken", 422, "state"),
        ("events?since=yesterday", 400, "since"),
        ("events?since=nan", 400, "since"),
        ("events?since=5x", 400, "since"),
        ("probes?since=", 400, "since"),
        ("probes?until=tomorrow", 400, "until"),
        ("probes?probe=", 404, "probe"),
        (f"events?since={'9' * 400}d", 400, "since"),
        (f"events?since={'9' * 5000}", 400, "since"),
        (f"probes?since=1h{'9' * 5000}d", 400, "since"),
        (f"events?limit={'9' * 5000}", 422, "limit"),
    ],
)
def test_invalid_parameter_is_named(port: int, query: str, status: int, named: str) -> None:
    """An unknown parameter is an error too."""
    answer = ask(port, f"/api/v1/{query}")
    assert is_problem(answer, status)
    assert named in answer.document["detail"]


def test_unknown_path_is_a_problem(port: int) -> None:
    """Errors of FastAPI have a remedy too."""
    assert is_problem(ask(port, "/api/v2/node"), 404)
    assert is_problem(ask(port, "/api/v1/node", "DELETE"), 405)


def test_run_is_found_by_id(node: ServedNode, port: int) -> None:
    """Finished, in progress, or unknown."""
    node.report = replace(samples.healthy(), probe=replace(samples.healthy().probe, running="run-9"))
    assert ask(port, f"/api/v1/probes/{example.run(2).id}").document["id"] == example.run(2).id
    running = ask(port, "/api/v1/probes/run-9")
    assert (running.status, running.document["running"], running.headers["Retry-After"]) == (202, True, "1")
    assert (running.document["probe"], running.document["progress"]) == ("allreduce", None)
    assert is_problem(ask(port, "/api/v1/probes/run-8"), 404)


def test_run_in_progress_has_its_progress(node: ServedNode, port: int) -> None:
    """As figures and as text."""
    node.report = replace(samples.healthy(), probe=example.measuring())
    answer = ask(port, f"/api/v1/probes/{example.run().id}")
    RunningResponse.model_validate_json(answer.body)
    assert answer.document["progress"] == {
        "rank": 3,
        "stage": "warm_up",
        "algorithm": "ring",
        "bytes": 1 << 30,
        "size": 1 << 30,
        "ratio": 0.42,
        "message": "warming up 1 GiB (ring)",
    }


def test_log_of_a_run_needs_the_token(node: ServedNode, port: int) -> None:
    """What ranks print names processes, users and pids."""
    result = replace(example.run(), log="pid 4711 of alice")
    node.report = replace(samples.healthy(), probe=ProbeState(history=(result,)))
    path = f"/api/v1/probes/{result.id}"
    assert b"alice" not in ask(port, path).body
    assert b"alice" not in ask(port, path, headers={"Authorization": "Bearer wrong"}).body
    assert ask(port, path, headers=BEARER).document["log"] == "pid 4711 of alice"


class NoThread:
    """A report that cannot be read at a limit of threads."""

    def __getattr__(self, name: str) -> None:
        raise RuntimeError("can't start new thread")


def test_a_limit_of_threads_is_no_bug(node: ServedNode, port: int) -> None:
    """The remedy names the limit, because a restart or a report of a bug does not help."""
    node.report = NoThread()  # type: ignore[assignment]
    broken = ask(port, "/api/v1/node")
    assert is_problem(broken, 500)
    assert "TasksMax" in broken.document["remedy"]


def test_bug_is_a_problem_too(node: ServedNode, port: int) -> None:
    """An exception is answered with 500 and a remedy, and the server keeps running."""
    node.report = None  # type: ignore[assignment]
    broken = ask(port, "/api/v1/node")
    assert is_problem(broken, 500)
    assert broken.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert (broken.headers["Cache-Control"], broken.headers["X-Frame-Options"]) == ("no-store", "DENY")
    node.report = samples.healthy()
    assert ask(port, "/api/v1/node").status == 200
