"""The run in progress, in a file: one that is still there when an agent starts was cut short with the agent before."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from gpumon.probe.core.conclusion import skipped
from gpumon.probe.core.plan import Run
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.runner.process_marks import is_other_agent_alive, own_mark

log = logging.getLogger("gpumon.probe.core")

_CUT_SHORT = Skip(
    reason="interrupted",
    hint="The agent was killed or the host went down while it ran, so it says nothing. "
    "`journalctl -u gpumon` and the kernel log tell why; run again.",
)


class RunRecord:
    """Written small and seldom. What cannot be written is only not remembered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: Run, probe: Probe, *, simulated: bool) -> None:
        document = {"run": asdict(run), "probe": probe.name, "simulated": simulated, "agent": own_mark()}
        try:
            beside = self._path.with_suffix(".new")
            beside.write_text(json.dumps(document), encoding="ascii")
            beside.replace(self._path)
        except OSError as error:
            hint = "should the agent be killed now, nobody will know of this run"
            log.warning("the run is not on record", extra={"id": run.id, "error": str(error), "hint": hint})

    def end(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the run is still on record", extra={"path": str(self._path), "error": str(error)})

    def interrupted_run(self) -> ProbeResult | None:
        """What became of the run that an earlier agent has not ended. Told once."""
        try:
            document = json.loads(self._path.read_text(encoding="ascii"))
            if is_other_agent_alive(document["agent"]):  # the store is its, and so is the run
                return None
            run, probe = Run(**document["run"]), PROBES[document["probe"]]
            result = skipped(probe, run, _CUT_SHORT, simulated=document["simulated"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a run from before the start is not known", extra={"error": str(error)})
            result = None
        self.end()
        return result
