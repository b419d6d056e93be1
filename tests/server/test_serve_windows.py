"""/api/v1/windows: every kind of window through one resource, and its short form /api/v1/probes/hold."""

from __future__ import annotations

from dataclasses import replace

import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from sample_windows import HOLD, MAINTENANCE, RELEASE, window
from serving import BEARER, ServedNode, ask, is_problem

from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import API, MARKER, NODE, TimeWindow, WindowKind, WindowRequest, WindowSelection
from gpumon.server import windows as routes

PATH, HOLDS = "/api/v1/windows", "/api/v1/probes/hold"
WALL, BOOT = samples.STAMP.wall, samples.STAMP.boot
STUCK = DeviceHolder(pid=4711, description="sampler 4711 in nvmlDeviceGetTemperature on 00000000:30:00.0", stuck=True)
STUCK_DOCUMENT = {"pid": 4711, "message": STUCK.description, "stuck": True}
BUS_ID = example_parts.bus_id(3)


def started_window(kind: WindowKind, **attributes: str) -> TimeWindow:
    """Return a window that started a minute ago and lasts five."""
    return window(kind, start=WALL - 60, start_at=BOOT - 60, seconds=300.0, **attributes)


def start(kind: WindowKind, seconds: float = 60.0, **attributes: str) -> tuple[WindowRequest]:
    return (WindowRequest(kind=kind, seconds=seconds, by=API, **attributes),)


def end(kind: WindowKind, **attributes: str) -> tuple[WindowSelection]:
    return (WindowSelection(kind=kind, by=API, **attributes),)


@pytest.fixture
def windows(node: ServedNode) -> tuple[TimeWindow, ...]:
    """Put one window of each kind in force, and one that has ended."""
    kept = (
        started_window(RELEASE, bus_id=BUS_ID),
        started_window(HOLD, owner="4711", reason="prolog"),
        started_window(MAINTENANCE, reason="new power supply"),
        replace(started_window(HOLD), ended=WALL - 5, ended_by=API),
    )
    node.report = changed(samples.healthy(), windows=kept, release_holders=(STUCK,))
    return kept


def test_all_windows_in_force_are_listed_or_those_of_a_kind(port: int, windows: tuple[TimeWindow, ...]) -> None:
    """With what every kind has; the scope of a release is a GPU or the node."""
    listed = ask(port, PATH).document["windows"]
    assert [each["id"] for each in listed] == [each.id for each in windows[:3]]
    times = {"since": "2025-11-20T11:59:00.000Z", "until": "2025-11-20T12:04:00.000Z", "remaining_seconds": 240}
    gpu = {"gpu": 3, "uuid": example_parts.uuid(3), "pci_bus_id": BUS_ID}
    about = {"id": windows[0].id, "kind": "release", "owner": "", "reason": ""}
    assert ask(port, f"{PATH}?kind=release").document == {"windows": [{"by": "command", **times, **gpu, **about}]}
    assert ask(port, HOLDS).document == ask(port, f"{PATH}?kind=hold").document == {"windows": [listed[1]]}
    assert is_problem(ask(port, f"{PATH}?kind=nothing"), 422)


def test_other_documents_have_the_windows_of_their_subject(port: int, windows: tuple[TimeWindow, ...]) -> None:
    """The node and its health have the releases and the maintenance, the probe the holds."""
    listed = {each["kind"]: each for each in ask(port, PATH).document["windows"]}
    assert len(listed) == len(windows) - 1
    node = ask(port, "/api/v1/node").document
    assert [listed["release"] | release for release in node["releases"]] == [listed["release"]]
    for document in (node, ask(port, "/api/v1/health").document):
        assert document["maintenance"]["reason"] == "new power supply"
        assert listed["maintenance"] | document["maintenance"] == listed["maintenance"]
    hold = ask(port, "/probe/allreduce").document["hold"]
    assert hold["until"] == listed["hold"]["until"]
    assert [listed["hold"] | holder for holder in hold["holders"]] == [listed["hold"]]


@pytest.mark.usefixtures("windows")
def test_processes_are_listed_with_the_token_alone(port: int) -> None:
    """Those of the agent that still have a released GPU open."""
    assert "holders" not in ask(port, PATH).document
    assert ask(port, PATH, headers=BEARER).document["holders"] == [STUCK_DOCUMENT]


@each_case("path", [PATH, f"{PATH}/1", HOLDS])
@each_case(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer no"}, 401), (BEARER | {"Origin": "http://elsewhere.example"}, 403)],
)
def test_changes_need_the_token(node: ServedNode, port: int, path: str, headers: dict[str, str], status: int) -> None:
    """A request without the token never reaches the main loop: it could hide a fault."""
    assert is_problem(ask(port, path, "DELETE", headers), status)
    if path != f"{PATH}/1":
        assert is_problem(ask(port, f"{path}?for_seconds=60", "POST", headers), status)
    assert node.asked == []


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (f"{PATH}?kind=release&for_seconds=60", start(RELEASE, bus_id=NODE)),
        (f"{PATH}?kind=hold&for_seconds=60&owner=4711", start(HOLD, owner="4711")),
        (f"{PATH}?kind=maintenance&for_seconds=60&reason=new+fans", start(MAINTENANCE, reason="new fans")),
        (f"{HOLDS}?for_seconds=60", start(HOLD)),
        (f"{HOLDS}?for_seconds=900&owner=4711&reason=prolog", start(HOLD, 900.0, owner="4711", reason="prolog")),
    ],
)
def test_a_window_of_any_kind_is_started(
    node: ServedNode, port: int, path: str, request_: tuple[WindowRequest]
) -> None:
    """With the scope, the owner and the reason of the request."""
    answer = ask(port, path, "POST", BEARER)
    assert (answer.document, node.asked) == ({"windows": [], "stored": True}, [request_])


@pytest.mark.parametrize("name", ["3", example_parts.uuid(3), BUS_ID, "0000:30:00.0", "30:00.0"])
def test_a_gpu_is_named_by_index_uuid_or_address(node: ServedNode, port: int, name: str) -> None:
    """Its release is started and ended by each of its names."""
    assert ask(port, f"{PATH}?kind=release&for_seconds=60&gpu={name}", "POST", BEARER).status == 200
    assert ask(port, f"{PATH}?kind=release&gpu={name}", "DELETE", BEARER).status == 200
    assert node.asked == [start(RELEASE, bus_id=BUS_ID), end(RELEASE, bus_id=BUS_ID)]


@each_case(
    ("path", "status"),
    [
        (f"{PATH}?kind=hold&for_seconds=60&gpu=3", 400),
        (f"{PATH}?kind=release&for_seconds=60&gpu=42", 404),
        (f"{PATH}?kind=release", 422),
        (f"{PATH}?for_seconds=60", 422),
        (f"{PATH}?kind=release&for_seconds=60&gpus=3", 422),
        (f"{PATH}?kind=release&for_seconds=-1", 422),
        (f"{PATH}?kind=release&for_seconds=nan", 422),
        (f"{PATH}?kind=release&for_seconds=inf", 422),
        (f"{PATH}?kind=release&for_seconds=5m", 422),
        (HOLDS, 422),
        (f"{HOLDS}?for_seconds=60&gpu=3", 422),
    ],
)
def test_an_invalid_request_starts_nothing(node: ServedNode, port: int, path: str, status: int) -> None:
    """Only a release can apply to one GPU, and a misspelled parameter must not release the whole node."""
    assert is_problem(ask(port, path, "POST", BEARER), status)
    assert node.asked == []


@each_case("path", ["release", "maintenance"])
@each_case("method", ["GET", "POST", "DELETE"])
def test_the_routes_of_one_kind_are_gone(port: int, path: str, method: str) -> None:
    """An old path answers as every unknown path does."""
    assert is_problem(ask(port, f"/api/v1/{path}?for_seconds=60", method, BEARER), 404)


def test_other_methods_list_the_allowed_ones(port: int) -> None:
    """405 lists the allowed methods, DELETE among them."""
    answer = ask(port, PATH, "PUT", BEARER)
    assert is_problem(answer, 405)
    assert answer.headers["Allow"] == "GET, HEAD, POST, DELETE"


@each_case("kind", ["release", "hold", "maintenance"])
def test_a_refusal_of_the_main_loop_is_returned(node: ServedNode, port: int, kind: str) -> None:
    """The error names the setting that limits the window."""
    node.let_go = RequestResult(refused="9 s is not between 0 and x.max_seconds, which is 8.", remedy="Ask for less.")
    answer = ask(port, f"{PATH}?kind={kind}&for_seconds=9", "POST", BEARER)
    assert is_problem(answer, 400)
    assert (answer.document["title"], answer.document["remedy"]) == (f"{kind.capitalize()} refused", "Ask for less.")
    assert "x.max_seconds" in answer.document["detail"]


@each_case(
    ("path", "title", "kind"),
    [
        (f"{PATH}?kind=release&for_seconds=60", "Still held", RELEASE),
        (f"{PATH}?kind=hold&for_seconds=60", "Not free", HOLD),
        (f"{HOLDS}?for_seconds=60", "Not free", HOLD),
    ],
)
@pytest.mark.usefixtures("windows")
def test_an_incomplete_effect_is_an_error(node: ServedNode, port: int, path: str, title: str, kind: WindowKind) -> None:
    """The client must not go on, for example to a reset that would hang, although the window is in force."""
    node.let_go = RequestResult(holders=(STUCK,))
    answer = ask(port, path, "POST", BEARER)
    assert is_problem(answer, 409)
    assert (answer.document["title"], answer.document["holders"]) == (title, [STUCK_DOCUMENT])
    assert STUCK.description in answer.document["detail"]
    assert "reboot it" in answer.document["remedy"]
    assert [each["kind"] for each in answer.document["windows"]] == [kind]
    node.let_go = RequestResult(not_readable="NVML has not been read.")
    answer = ask(port, path, "POST", BEARER)
    assert is_problem(answer, 409)
    assert (answer.document["detail"], answer.document["holders"]) == ("NVML has not been read.", [])


def test_a_main_loop_that_does_not_respond_is_an_error(
    node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAIN_LOOP_TIMEOUT_SECONDS", 0.05)
    node.let_go = None
    assert is_problem(ask(port, f"{PATH}?kind=release&for_seconds=5", "POST", BEARER), 503)


@pytest.mark.parametrize(
    ("path", "selection"),
    [
        (f"{PATH}?kind=release", end(RELEASE)),
        (f"{PATH}?kind=maintenance", end(MAINTENANCE)),
        (f"{PATH}?kind=hold", end(HOLD)),
        (f"{PATH}?kind=hold&owner=", end(HOLD, owner="")),
        (f"{PATH}?kind=hold&owner=+4711", end(HOLD, owner="4711")),
        (HOLDS, end(HOLD, owner="")),
        (f"{HOLDS}?owner=4711", end(HOLD, owner="4711")),
    ],
)
def test_windows_are_ended_by_kind_and_owner(
    node: ServedNode, port: int, windows: tuple[TimeWindow, ...], path: str, selection: tuple[WindowSelection]
) -> None:
    """The answer has the windows of the kind that are left, which the served node does not end."""
    answer = ask(port, path, "DELETE", BEARER).document
    assert ([each["kind"] for each in answer["windows"]], answer["stored"]) == ([selection[0].kind], True)
    assert (node.report.windows, node.asked) == (windows, [selection])


@each_case(
    ("query", "status"), [("", 422), ("?owner=4711", 422), ("?kind=hold&gpu=3", 400), ("?kind=release&gpu=42", 404)]
)
def test_an_invalid_end_ends_nothing(node: ServedNode, port: int, query: str, status: int) -> None:
    """One request never ends windows of every kind."""
    assert is_problem(ask(port, PATH + query, "DELETE", BEARER), status)
    assert node.asked == []


def test_a_window_is_ended_by_its_id(node: ServedNode, port: int, windows: tuple[TimeWindow, ...]) -> None:
    """Except that of the marker file, and one that is not in force."""
    hold = windows[1]
    assert ask(port, f"{PATH}/{hold.id}", "DELETE", BEARER).document["stored"]
    assert node.asked == [(WindowSelection(id=hold.id, by=API),)]
    marker = started_window(RELEASE, by=MARKER)
    node.report = replace(node.report, windows=(*windows, marker))
    assert is_problem(ask(port, f"{PATH}/{marker.id}", "DELETE", BEARER), 409)
    assert is_problem(ask(port, f"{PATH}/{windows[3].id}", "DELETE", BEARER), 404)
    assert len(node.asked) == 1


def test_the_release_of_a_removed_gpu_is_ended_by_its_address(
    node: ServedNode, port: int, windows: tuple[TimeWindow, ...]
) -> None:
    """A GPU bound to another driver is not in the inventory, but its release can be ended by PCI address."""
    node.report = changed(node.report, gpus=tuple(gpu for gpu in node.report.gpus if gpu.index != 3))
    assert windows[0].bus_id == BUS_ID
    assert is_problem(ask(port, f"{PATH}?kind=release&gpu=3", "DELETE", BEARER), 404)
    assert ask(port, f"{PATH}?kind=release&gpu=0000:30:00.0", "DELETE", BEARER).status == 200
    assert node.asked == [end(RELEASE, bus_id=BUS_ID)]


@each_case(
    ("scope", "statuses"), [(NODE, {"": 409, "&gpu=3": 409, "&gpu=2": 409}), (BUS_ID, {"&gpu=3": 409, "&gpu=2": 200})]
)
def test_a_marker_is_not_ended_by_request(node: ServedNode, port: int, scope: str, statuses: dict[str, int]) -> None:
    """A release by marker file ends only when the file is removed, and hinders the end of no other release."""
    node.report = replace(samples.healthy(), windows=(started_window(RELEASE, bus_id=scope, by=MARKER),))
    for query, status in statuses.items():
        answer = ask(port, f"{PATH}?kind=release{query}", "DELETE", BEARER)
        assert answer.status == status
        assert ("release.marker" in answer.document.get("remedy", "")) == (status == 409)
        assert len(answer.document["windows"]) == 1
