"""A headless Chromium, driven over its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
)
PLACE = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""The protocol is spoken on descriptors 3 and 4, whatever numbers the pipes have here."""


class Browser:
    """One page, with a record of its requests and of its console."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = to, of
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requested: list[str] = []
        self.console: list[str] = []
        self._expired = False

    def open(self, url: str, seconds: float, width: int = 1280) -> str:
        """The page's HTML after its scripts have run for so many seconds of a clock that leaps over waiting."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Log", "Runtime", "Network", "Page"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=url)
        budget = {"policy": "pauseIfNetworkFetchesPending", "budget": seconds * 1000}
        self._call("Emulation.setVirtualTimePolicy", **budget)
        while not self._expired:
            self._take(self._read())
        return str(self.evaluate("document.documentElement.outerHTML"))

    def evaluate(self, expression: str) -> Any:
        return self._call("Runtime.evaluate", expression=expression)["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._take(answer)

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            part = os.read(self._of, 1 << 16)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _take(self, event: Any) -> None:
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(event["params"]["request"]["url"])
            case "Log.entryAdded":
                self.console.append(event["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.console.append(json.dumps(event["params"]))
            case "Emulation.virtualTimeBudgetExpired":
                self._expired = True


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A fresh one, with its profile in this folder."""
    assert PROGRAM is not None, "needs Chromium: apt-get install chromium"
    its_input, to = os.pipe()
    of, its_output = os.pipe()
    place = (sys.executable, "-c", PLACE, str(its_input), str(its_output))
    process = subprocess.Popen(
        (*place, PROGRAM, *FLAGS, f"--user-data-dir={folder}"),
        pass_fds=(its_input, its_output),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Browser(to, of)
    finally:
        os.close(to)
        os.close(of)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
