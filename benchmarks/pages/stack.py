"""A fleet that replays tapes, a real Prometheus and Alertmanager with the shipped files, and receivers that record."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from agents import eventually, free_port, running

from gpumon import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
RULES = ROOT / "alert_rules" / "gpumon.yml"
Pages = Mapping[str, Callable[[], str | None]]
"""Functions that return /metrics of a node, by its name; None: the node does not answer."""


@dataclass(frozen=True, slots=True)
class Notified:
    """One alert in one notification that left Alertmanager."""

    at: float
    """Seconds since the epoch."""
    notification: int
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass
class Receivers:
    """The receivers of Alertmanager. They record what they receive."""

    received: list[Notified] = field(default_factory=list)
    count: int = 0

    def take(self, receiver: str, message: Mapping[str, Any]) -> None:
        """Record a notification."""
        self.count += 1
        self.received += [
            Notified(time.time(), self.count, receiver, alert["status"], alert["labels"], alert["annotations"])
            for alert in message["alerts"]
        ]


@contextlib.contextmanager
def stack(folder: Path, pages: Pages, *, interval: float = 15.0) -> Iterator[Receivers]:
    """Run Prometheus and Alertmanager on these nodes. `interval`: seconds between scrapes, and between evaluations."""
    receivers = Receivers()
    with server(_fleet(pages)) as fleet, server(webhooks(receivers)) as hooks:
        prometheus, alertmanager = free_port(), free_port()
        _write(folder / "alertmanager.yml", routes(hooks))
        _write(folder / "prometheus.yml", _prometheus(pages, fleet, alertmanager, interval))
        commands = {
            "prometheus-alertmanager": [
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
            ],
            "prometheus": [
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{prometheus}",
            ],
        }
        with contextlib.ExitStack() as started:
            for name, flags in commands.items():
                started.enter_context(running([name, *flags], folder / f"{name}.log"))
            eventually(
                lambda: any(each.labels["alertname"] == "GpumonWatchdog" for each in receivers.received), within=120
            )
            yield receivers


def _write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def routes(hooks: int, text: str = ALERTMANAGER.read_text(encoding="utf-8")) -> Mapping[str, Any]:
    """Return the shipped configuration `text` with a webhook in place of each receiver but "null"."""
    shipped: dict[str, Any] = yaml.safe_load(text)
    shipped["receivers"] = [
        {"name": name} | ({"webhook_configs": [{"url": f"http://127.0.0.1:{hooks}/{name}"}]} if name != "null" else {})
        for name in (receiver["name"] for receiver in shipped["receivers"])
    ]
    return shipped | {"templates": []}


def _prometheus(pages: Pages, fleet: int, alertmanager: int, interval: float) -> Mapping[str, Any]:
    every = f"{interval:g}s"
    targets = [
        {
            "targets": [f"127.0.0.1:{fleet}"],
            "labels": {"__metrics_path__": f"/{name}/metrics", "instance": f"{name}:{DEFAULT_PORT}"},
        }
        for name in pages
    ]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(RULES)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [{"job_name": "gpumon", "static_configs": targets}],
    }


def _fleet(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class MonitoredFleet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages[self.path.split("/")[1]]()
            self.send_response(503 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return MonitoredFleet


def webhooks(receivers: Receivers) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Webhooks(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                receivers.take(self.path.strip("/"), message)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Webhooks


@contextlib.contextmanager
def server(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield served.server_address[1]
    finally:
        served.shutdown()
        served.server_close()
