"""Runs Prometheus with gpumon's rules, Alertmanager and a webhook receiver, and shows what reaches an operator."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from agents import eventually, free_port, running

from gpumon.fleet.alert_rules import rules
from gpumon.fleet.rule_file import render

MAX_FOR_SECONDS = 3.0
"""Maximum `for` of a rule here, so that GpumonDown does not take three minutes."""


class AlertStack:
    """Prometheus with gpumon's rules and a scrape every second, Alertmanager, and a webhook as the pager."""

    def __init__(self, folder: Path, target: int) -> None:
        self.prometheus, self.alertmanager, self.webhook = free_port(), free_port(), free_port()
        self.folder = folder
        self.alertmanager_process: subprocess.Popen[bytes]
        self.notifications: list[tuple[str, dict[str, str]]] = []
        """Each alert in each notification that left Alertmanager: firing or resolved, and its labels."""
        shortened = (replace(rule, for_seconds=min(rule.for_seconds, MAX_FOR_SECONDS)) for rule in rules())
        (folder / "rules.yml").write_text(render(shortened), encoding="utf-8")
        self.scrape(target)
        hook = {"url": f"http://127.0.0.1:{self.webhook}/", "send_resolved": True}
        route = {"receiver": "pager", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
        self._write("alertmanager", {"route": route, "receivers": [{"name": "pager", "webhook_configs": [hook]}]})

    def scrape(self, *targets: int) -> None:
        """Configure these targets. A running Prometheus reads that at its next reload."""
        addresses = [f"127.0.0.1:{target}" for target in targets]
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / "rules.yml")],
            "scrape_configs": [{"job_name": "gpumon", "static_configs": [{"targets": addresses}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
        }
        self._write("prometheus", configuration)

    def reload(self) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.prometheus}/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    def _write(self, name: str, configuration: object) -> None:
        (self.folder / f"{name}.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")

    @contextlib.contextmanager
    def up(self, *, prometheus: bool = True) -> Iterator[AlertStack]:
        """Run the stack. `prometheus`: False for Alertmanager and pager alone."""
        alertmanager = [
            "prometheus-alertmanager",
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{self.alertmanager}",
            "--cluster.listen-address=",
        ]
        scraping = [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus}",
            "--web.enable-lifecycle",
        ]
        with (
            self._receiver(),
            running(alertmanager, self.folder / "alertmanager.log") as self.alertmanager_process,
            running(scraping, self.folder / "prometheus.log") if prometheus else contextlib.nullcontext(),
        ):
            if prometheus:
                eventually(lambda: self.query("up == 1"))
            yield self

    @contextlib.contextmanager
    def _receiver(self) -> Iterator[None]:
        notifications = self.notifications

        class Pager(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                notifications.extend((alert["status"], alert["labels"]) for alert in message["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", self.webhook), Pager)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def notifications_of(self, alert: str) -> list[str]:
        """Return the notifications about an alert in order: firing or resolved."""
        return [status for status, labels in list(self.notifications) if labels["alertname"] == alert]

    def notified_by_labels(self, alert: str) -> dict[frozenset[tuple[str, str]], list[str]]:
        """Return the notifications about an alert in order, by all its labels."""
        by_labels: dict[frozenset[tuple[str, str]], list[str]] = {}
        for status, labels in list(self.notifications):
            if labels["alertname"] == alert:
                by_labels.setdefault(frozenset(labels.items()), []).append(status)
        return by_labels

    def query(self, promql: str) -> list[Any]:
        asked = urllib.parse.urlencode({"query": promql})
        return list(_json(f"http://127.0.0.1:{self.prometheus}/api/v1/query?{asked}")["data"]["result"])

    def firing(self) -> set[tuple[str, str]]:
        """Return rule and GPU of the active alerts in Alertmanager."""
        alerts = _json(f"http://127.0.0.1:{self.alertmanager}/api/v2/alerts?active=true")
        return {(alert["labels"]["alertname"], alert["labels"].get("gpu", "")) for alert in alerts}


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)
