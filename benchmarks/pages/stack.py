"""A fleet that replays tapes, a real Prometheus and Alertmanager with the shipped files, and receivers that record."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from agents import eventually, free_port
from servers import HttpRequest, alertmanager, http_server, prometheus, write_yaml

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


@contextlib.contextmanager
def stack(folder: Path, pages: Pages, *, interval: float = 15.0) -> Iterator[list[Notified]]:
    """Run Prometheus and Alertmanager on these nodes. `interval`: seconds between scrapes, and between evaluations."""
    received = list[Notified]()

    def serve(request: HttpRequest) -> tuple[int, bytes]:
        page = pages[request.path.split("/")[1]]()
        return (503, b"") if page is None else (200, page.encode())

    with http_server(serve) as fleet, http_server(webhook(received)) as hooks:
        at = free_port()
        write_yaml(folder / "alertmanager.yml", routes(hooks))
        write_yaml(folder / "prometheus.yml", _prometheus(pages, fleet, at, interval))
        with alertmanager(folder, at), prometheus(folder, free_port()):
            eventually(lambda: any(each.labels["alertname"] == "GpumonWatchdog" for each in received), within=120)
            yield received


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


def webhook(received: list[Notified]) -> Callable[[HttpRequest], tuple[int, bytes]]:
    """Return the answers of the receivers of Alertmanager. They record each alert that they receive."""
    count = itertools.count(1)

    def receive(request: HttpRequest) -> tuple[int, bytes]:
        number, receiver = next(count), request.path.strip("/")
        received.extend(
            Notified(time.time(), number, receiver, alert["status"], alert["labels"], alert["annotations"])
            for alert in json.loads(request.body)["alerts"]
        )
        return 200, b""

    return receive
