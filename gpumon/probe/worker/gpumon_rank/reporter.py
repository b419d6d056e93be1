"""Sends frames to the agent through a separate descriptor, so that output of libraries cannot mix with them."""

from __future__ import annotations

import json
import os
import time

from gpumon_rank.faults import Fault

PROGRESS_INTERVAL = 0.25


class Reporter:
    """Reports the progress and measurements of this rank to the agent, one JSON object (frame) per line."""

    def __init__(self, descriptor: int, fault: Fault) -> None:
        self._descriptor = descriptor
        self._fault = fault
        self._next_progress = 0.0
        self.stage = "start"

    def frame(self, **values: object) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")

    def enter(self, stage: str, **values: object) -> None:
        self.stage = stage
        self.frame(stage=stage, **values)
        self._fault.apply_at(stage)

    def progress(self, **values: object) -> None:
        """Send a frame with the current stage and these values, at most four times per second."""
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL
            self.frame(stage=self.stage, **values)
