"""What the other hosts come to, asked of a real Prometheus that scrapes them."""

from __future__ import annotations

import http.server
import json
import logging
import socketserver
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from agents import eventually, free_port, running
from loops import turn_until

from gpumon.probe.core.fleet import FleetFigures, Hardware, read
from gpumon.probe.core.probes import GIB
from gpumon.probe.core.result import Measurement
from gpumon.probe.runner import fleet_figures as supervisor_fleet
from gpumon.probe.runner.fleet_figures import Fleet
from gpumon.server import example, example_parts
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

MODEL = "NVIDIA H100 80GB HBM3"
OWN = "GPU-own-0"


def page(host: str, busbw: float, *, gpus: int = 8, ranks: int = 8, model: str = MODEL) -> str:
    """What an agent exports of its GPUs and its last run."""
    info = "".join(f'gpumon_gpu_info{{gpu="{gpu}",uuid="GPU-{host}-{gpu}",name="{model}"}} 1\n' for gpu in range(gpus))
    labels = f'backend="nccl",algorithm="default",bytes="{GIB}"'
    return (
        f"{info}gpumon_probe_allreduce_busbw_bytes_per_second{{{labels}}} {busbw}\n"
        f'gpumon_probe_allreduce_ranks{{backend="nccl"}} {ranks}\n'
    )


HOSTS: Mapping[str, str] = {
    "own": page("own", 100e9),
    "a": page("a", 440e9),
    "b": page("b", 450e9),
    "c": page("c", 460e9),
    "others": page("others", 840e9, model="NVIDIA B200"),
    "small": page("small", 360e9, gpus=4, ranks=4),
    "partial": page("partial", 370e9, ranks=6),
}


class Hosts(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = HOSTS[self.path.strip("/")].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not a word."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hosts) as hosts:
        threading.Thread(target=hosts.serve_forever, daemon=True).start()
        port = free_port()
        jobs = [
            {
                "job_name": name,
                "metrics_path": f"/{name}",
                "static_configs": [{"targets": [f"127.0.0.1:{hosts.server_address[1]}"], "labels": {"instance": name}}],
            }
            for name in HOSTS
        ]
        config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        url = f"http://127.0.0.1:{port}"
        arguments = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with running(arguments, folder / "log"):
            eventually(lambda: seen(url) == len(HOSTS))
            yield url
        hosts.shutdown()


def report(*, model: str = MODEL, gpus: int = 8, simulated: str | None = None) -> Report:
    states = tuple(
        replace(
            example_parts.gpu(index), uuid=f"GPU-own-{index}", gpu=replace(example_parts.gpu(index).gpu, name=model)
        )
        for index in range(gpus)
    )
    return replace(example.report(), gpus=states, simulated=simulated)


def seen(url: str) -> int | None:
    """How many hosts Prometheus knows."""
    query = urllib.parse.urlencode({"query": "count(gpumon_probe_allreduce_ranks)"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return int(found[0]["value"][1]) if found else None


def medians(url: str, model: str = MODEL) -> Mapping[tuple[str, int], float]:
    """As the agent of such a host is told."""
    loop = Loop()
    fleet = Fleet(loop, url, lambda: report(model=model))
    fleet.look()
    turn_until(loop, lambda: fleet.figures.hardware is not None)
    return fleet.figures.busbw


def measured(**values: object) -> Measurement:
    return replace(
        Measurement(
            bytes=GIB,
            iterations=20,
            algbw_bytes_per_second=1e9,
            busbw_bytes_per_second=1e9,
            latency_seconds={},
            wrong_elements=0,
        ),
        **values,  # type: ignore[arg-type]
    )


def test_the_median_is_of_other_hosts_with_as_many_gpus_of_the_same_model(prometheus: str) -> None:
    """Not of this one, nor of runs that left GPUs out; and of three hosts at least."""
    assert medians(prometheus) == {("default", GIB): 450e9}
    assert medians(prometheus, "NVIDIA B200") == {}
    assert medians(prometheus, 'say "x" \\') == {}


def test_figures_hold_for_an_all_reduce_on_all_gpus() -> None:
    """Nothing else was measured by the others."""
    figures = FleetFigures(hardware=Hardware(model=MODEL, gpus=8, uuid=OWN), busbw={("default", GIB): 450e9})
    assert figures.figure(MODEL, 8, measured()) == 450e9
    assert figures.figure(MODEL, 6, measured()) is None
    assert figures.figure("NVIDIA H200", 8, measured()) is None
    assert figures.figure(MODEL, 8, measured(algorithm="ring")) is None
    assert figures.figure(MODEL, 8, measured(collective="all_gather")) is None
    assert FleetFigures().figure(MODEL, 8, measured()) is None


def test_a_failure_is_told_once_and_so_is_its_end(prometheus: str, caplog: pytest.LogCaptureFixture) -> None:
    """And gives no figure; a new address is asked at once."""
    caplog.set_level(logging.INFO, logger="gpumon.probe.core")
    loop, nobody = Loop(), f"http://127.0.0.1:{free_port()}"
    fleet = Fleet(loop, nobody, report)
    fleet.look()
    turn_until(loop, lambda: bool(caplog.records))
    fleet.look()  # not due yet
    assert fleet.figures == FleetFigures()
    assert [one.message for one in caplog.records] == ["the fleet's Prometheus cannot be asked"]
    fleet.change(prometheus)
    fleet.look()
    turn_until(loop, lambda: fleet.figures.hardware is not None)
    assert fleet.figures.busbw == {("default", GIB): 450e9}
    fleet.change(None)
    assert fleet.figures == FleetFigures()


@pytest.mark.parametrize("node", [report(simulated="h100x8"), report(gpus=1)])
def test_a_node_that_compares_with_nobody_asks_nobody(node: Report, caplog: pytest.LogCaptureFixture) -> None:
    """A simulated one, and one GPU alone."""
    before = set(threading.enumerate())
    Fleet(Loop(), f"http://127.0.0.1:{free_port()}", lambda: node).look()
    assert set(threading.enumerate()) <= before
    assert not caplog.records


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"status": "success", "data": {"result": [{"metric": {}, "value": [0, "1"]}]}}',
        b'{"status": "success", "data": {"result": [{"metric": {"algorithm": "ring", "bytes": "1"}, "value": []}]}}',
        b'{"status": "error", "errorType": "bad_data", "error": "parse error"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    """With ValueError, whatever it is."""
    with pytest.raises(ValueError, match=r"."):
        read(Hardware(model=MODEL, gpus=8, uuid=OWN), body)


def test_values_that_are_no_bandwidth_are_left_out() -> None:
    """Prometheus writes them as words."""
    series = [
        {"metric": {"algorithm": name, "bytes": "1024"}, "value": [0, value]}
        for name, value in (("a", "NaN"), ("b", "+Inf"), ("c", "0"), ("d", "2.5e+9"))
    ]
    body = json.dumps({"status": "success", "data": {"result": series}}).encode()
    assert read(Hardware(model=MODEL, gpus=8, uuid=OWN), body).busbw == {("d", 1024): 2.5e9}


class Wild(socketserver.StreamRequestHandler):
    """Answers what the server was given, to whatever is asked."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    ],
    ids=["another protocol", "nothing", "cut off", "nested without end", "headers without end"],
)
def test_what_is_no_answer_is_asked_again(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it is: no question stays open for ever."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Wild) as wild:
        wild.answer = answer  # type: ignore[attr-defined]
        threading.Thread(target=wild.serve_forever, daemon=True).start()
        loop = Loop()
        fleet = Fleet(loop, f"http://127.0.0.1:{wild.server_address[1]}", report)

        def failed() -> int:
            return sum("cannot be asked" in one.message for one in caplog.records)

        fleet.look()
        turn_until(loop, lambda: failed() == 1)
        fleet.change("http://127.0.0.1:1")
        fleet.look()
        turn_until(loop, lambda: failed() == 2)
        wild.shutdown()
    assert not fleet.figures.busbw


class Dripping(socketserver.StreamRequestHandler):
    """Sends what the server was given, then a byte now and then for as long as anybody listens."""

    def handle(self) -> None:
        try:
            self.wfile.write(self.server.answer)  # type: ignore[attr-defined]
            while not self.server.over.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"1")
        except OSError:
            self.server.left.set()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\n\r\n[", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ids=["its head", "its body", "the size of a part"],
)
def test_an_answer_that_drips_is_given_up(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole question has a deadline: nothing of it stays open, and whoever is named next is asked."""
    monkeypatch.setattr(supervisor_fleet, "ANSWER_SECONDS", 0.3)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as drip:
        drip.answer, drip.over, drip.left = answer, threading.Event(), threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=drip.serve_forever, daemon=True).start()
        loop = Loop()
        fleet = Fleet(loop, f"http://127.0.0.1:{drip.server_address[1]}", report)
        fleet.look()
        turn_until(loop, lambda: bool(caplog.records))
        assert caplog.records[0].__dict__["error"] == "TimeoutError: no whole answer within 0.3 s"
        assert drip.left.wait(60), "the connection is still open"  # type: ignore[attr-defined]
        drip.over.set()  # type: ignore[attr-defined]
        drip.shutdown()


def test_an_answer_that_is_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not cut off, which would make it another answer."""
    monkeypatch.setattr(supervisor_fleet, "ANSWER_LIMIT", 100)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Wild) as wild:
        wild.answer = b"HTTP/1.1 200 OK\r\n\r\n" + b"{}" + b" " * 100  # type: ignore[attr-defined]
        threading.Thread(target=wild.serve_forever, daemon=True).start()
        loop = Loop()
        Fleet(loop, f"http://127.0.0.1:{wild.server_address[1]}", report).look()
        turn_until(loop, lambda: bool(caplog.records))
        wild.shutdown()
    assert caplog.records[0].__dict__["error"] == "ValueError: the answer is longer than 100 bytes"
