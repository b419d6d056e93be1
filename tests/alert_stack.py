"""Runs Prometheus with gpumon's rules, Alertmanager and a webhook receiver, and shows what reaches an operator."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents import eventually, free_port
from servers import HttpRequest, alertmanager, http_server, prometheus, query, write_yaml

from gpumon.fleet.alert_rules import render, rules

MAX_FOR_SECONDS = 3.0
"""Maximum `for` of a rule here, so that GpumonDown does not take three minutes."""


class AlertStack:
    """Prometheus with gpumon's rules and a scrape every second, Alertmanager, and a webhook as the pager."""

    def __init__(self, folder: Path, target: int) -> None:
        self.prometheus, self.alertmanager, self.webhook = free_port(), free_port(), free_port()
        self.folder = folder
        self.notifications: list[tuple[str, dict[str, str]]] = []
        """Each alert in each notification that left Alertmanager: firing or resolved, and its labels."""
        shortened = (replace(rule, for_seconds=min(rule.for_seconds, MAX_FOR_SECONDS)) for rule in rules())
        (folder / "rules.yml").write_text(render(shortened), encoding="utf-8")
        self.scrape(target)
        hook = {"url": f"http://127.0.0.1:{self.webhook}/", "send_resolved": True}
        route = {"receiver": "pager", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
        receivers = [{"name": "pager", "webhook_configs": [hook]}]
        write_yaml(folder / "alertmanager.yml", {"route": route, "receivers": receivers})

    def scrape(self, *targets: int) -> None:
        """Configure these targets. A running Prometheus reads that at its next reload."""
        addresses = [f"127.0.0.1:{target}" for target in targets]
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / "rules.yml")],
            "scrape_configs": [{"job_name": "gpumon", "static_configs": [{"targets": addresses}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
        }
        write_yaml(self.folder / "prometheus.yml", configuration)

    def reload(self) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.prometheus}/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    @contextlib.contextmanager
    def up(self, *, scraping: bool = True) -> Iterator[AlertStack]:
        """Run the stack. `scraping`: False for Alertmanager and pager alone."""
        with contextlib.ExitStack() as servers:
            servers.enter_context(http_server(self._receive, self.webhook))
            servers.enter_context(alertmanager(self.folder, self.alertmanager))
            if scraping:
                servers.enter_context(prometheus(self.folder, self.prometheus, "--web.enable-lifecycle"))
                eventually(lambda: self.query("up == 1"))
            yield self

    def _receive(self, request: HttpRequest) -> tuple[int, bytes]:
        self.notifications += [(alert["status"], alert["labels"]) for alert in json.loads(request.body)["alerts"]]
        return 200, b""

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
        return query(self.prometheus, promql)

    def firing(self) -> set[tuple[str, str]]:
        """Return rule and GPU of the active alerts in Alertmanager."""
        url = f"http://127.0.0.1:{self.alertmanager}/api/v2/alerts?active=true"
        with urllib.request.urlopen(url, timeout=5) as answer:
            alerts = json.load(answer)
        return {(alert["labels"]["alertname"], alert["labels"].get("gpu", "")) for alert in alerts}
