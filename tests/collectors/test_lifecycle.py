"""Requests of the daemon to its children."""

from __future__ import annotations

from gpumon.collectors.lifecycle import DaemonRequests


def test_a_line_that_is_no_request_changes_nothing() -> None:
    """An empty line, or one of another version of the daemon, neither ends the thread nor the close reading."""
    requests = DaemonRequests()
    for line in (b"watch\n", b"pids 12 7\n", b"\n", b"pid\n", b"\xff\n"):
        requests.take(line)
    assert (requests.watch, requests.pids, requests.end.is_set()) == (True, ("12", "7"), False)
    for line in (b"rest\n", b"pids\n", b"end\n"):
        requests.take(line)
    assert (requests.watch, requests.pids, requests.end.is_set()) == (False, (), True)
