"""/api/v1/windows: every kind of window through one resource."""

from __future__ import annotations

from dataclasses import replace

import example_parts
import pytest
import sample_reports as samples
from sample_windows import HOLD, MAINTENANCE, RELEASE, window
from serving import BEARER, ServedNode, ask, is_problem

from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import API, MARKER, TimeWindow, WindowRequest, WindowSelection

PATH = "/api/v1/windows"
WALL, BOOT = samples.STAMP.wall, samples.STAMP.boot


def started_window(kind: str, **attributes: str) -> TimeWindow:
    """Return a window that started a minute ago and lasts five."""
    return window(kind, start=WALL - 60, start_at=BOOT - 60, seconds=300.0, **attributes)  # type: ignore[arg-type]


@pytest.fixture
def windows(node: ServedNode) -> tuple[TimeWindow, ...]:
    """Put one window of each kind in force, and one that has ended."""
    kept = (
        started_window(RELEASE, bus_id=example_parts.bus_id(3)),
        started_window(HOLD, owner="4711", reason="prolog"),
        started_window(MAINTENANCE, reason="new power supply"),
        replace(started_window(HOLD), ended=WALL - 5, ended_by=API),
    )
    node.report = replace(samples.healthy(), windows=kept)
    return kept


def test_all_windows_in_force_are_listed_or_those_of_a_kind(
    node: ServedNode, port: int, windows: tuple[TimeWindow, ...]
) -> None:
    """With what every kind has; the scope of a release is a GPU or the node."""
    assert node.report.windows == windows
    listed = ask(port, PATH).document["windows"]
    assert [each["id"] for each in listed] == [each.id for each in windows[:3]]
    assert ask(port, f"{PATH}?kind=release").document["windows"] == [
        {
            "by": "command",
            "since": "2025-11-20T11:59:00.000Z",
            "until": "2025-11-20T12:04:00.000Z",
            "id": windows[0].id,
            "kind": "release",
            "gpu": 3,
            "uuid": example_parts.uuid(3),
            "pci_bus_id": example_parts.bus_id(3),
            "owner": "",
            "reason": "",
            "remaining_seconds": 240,
        }
    ]
    assert is_problem(ask(port, f"{PATH}?kind=nothing"), 422)


def test_a_window_of_any_kind_is_started(node: ServedNode, port: int) -> None:
    """With the scope, the owner and the reason of the request."""
    cases = {
        "kind=release&for_seconds=60&gpu=3": WindowRequest(
            kind=RELEASE, seconds=60.0, by=API, bus_id=example_parts.bus_id(3)
        ),
        "kind=hold&for_seconds=60&owner=4711": WindowRequest(kind=HOLD, seconds=60.0, by=API, owner="4711"),
        "kind=maintenance&for_seconds=60&reason=fans": WindowRequest(
            kind=MAINTENANCE, seconds=60.0, by=API, reason="fans"
        ),
    }
    for query, request in cases.items():
        node.asked.clear()
        answer = ask(port, f"{PATH}?{query}", "POST", BEARER)
        assert (answer.document, node.asked) == ({"windows": [], "stored": True}, [(request,)]), query


def test_an_invalid_request_starts_nothing(node: ServedNode, port: int) -> None:
    """Only a release can apply to one GPU."""
    cases = {
        "kind=hold&for_seconds=60&gpu=3": 400,
        "kind=release&for_seconds=60&gpu=42": 404,
        "kind=release": 422,
        "for_seconds=60": 422,
        "kind=release&for_seconds=60&gpus=3": 422,
    }
    for query, status in cases.items():
        assert is_problem(ask(port, f"{PATH}?{query}", "POST", BEARER), status), query
    assert is_problem(ask(port, f"{PATH}?kind=release&for_seconds=60", "POST"), 401)
    assert node.asked == []


def test_an_incomplete_effect_is_an_error(node: ServedNode, port: int) -> None:
    """The client must not go on, although the window is in force. Maintenance is complete at once."""
    holder = DeviceHolder(pid=4711, description="sampler 4711", stuck=True)
    node.let_go = RequestResult(holders=(holder,))
    for kind, title in (("release", "Still held"), ("hold", "Not free")):
        answer = ask(port, f"{PATH}?kind={kind}&for_seconds=60", "POST", BEARER)
        assert is_problem(answer, 409), kind
        assert answer.document["title"] == title
        assert answer.document["holders"] == [{"pid": 4711, "message": "sampler 4711", "stuck": True}]
    node.let_go = RequestResult(refused="Too long.", remedy="Ask for less.")
    answer = ask(port, f"{PATH}?kind=maintenance&for_seconds=60&reason=fans", "POST", BEARER)
    assert is_problem(answer, 400)
    assert answer.document["title"] == "Maintenance refused"


def test_a_window_is_ended_by_its_id(node: ServedNode, port: int, windows: tuple[TimeWindow, ...]) -> None:
    """Except that of the marker file, and one that is not in force."""
    hold = windows[1]
    assert ask(port, f"{PATH}/{hold.id}", "DELETE", BEARER).document["stored"]
    assert node.asked == [(WindowSelection(id=hold.id, by=API),)]
    marker = started_window(RELEASE, by=MARKER)
    node.report = replace(node.report, windows=(*windows, marker))
    assert is_problem(ask(port, f"{PATH}/{marker.id}", "DELETE", BEARER), 409)
    assert is_problem(ask(port, f"{PATH}/{windows[3].id}", "DELETE", BEARER), 404)
    assert is_problem(ask(port, f"{PATH}/{hold.id}", "DELETE"), 401)
    assert len(node.asked) == 1
