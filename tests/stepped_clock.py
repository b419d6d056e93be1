"""A wall clock that a test can step under a running agent, as NTP or an operator does."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("stepped_clock.c")


class SteppedClock:
    """The clock of every process that is started with its `environment`. Requires gcc."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "stepped_clock.so"
        self._seconds = folder / "stepped_clock"
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["gcc", *options, "-o", self._library, SOURCE], check=True)
        self.step(0)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._seconds)}

    def step(self, seconds: int) -> None:
        """Set the difference to the true time."""
        written = self._seconds.with_suffix(".new")
        written.write_text(f"{seconds}\n", encoding="ascii")
        written.rename(self._seconds)
