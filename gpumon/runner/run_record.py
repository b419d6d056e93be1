"""Records the run in progress in a file.

If the file exists at the start of the agent, the previous agent ended during the run.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from gpumon import trusted_file
from gpumon.probe.core.conclusion import skipped_result
from gpumon.probe.core.plan import Run
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.probe.core.result import ProbeResult
from gpumon.runner.process_marks import is_other_agent_alive, own_mark

log = logging.getLogger("gpumon.probe")

MAX_BYTES = 64 * 1024

_CUT_SHORT = Skip(
    reason="interrupted",
    hint="The agent was killed, or the host went down, during the run. "
    "`journalctl -u gpumon` and the kernel log show why. Run again.",
)


class RunRecord:
    """The file that names the run in progress. A failure to write or read it is logged as a warning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: Run, probe: Probe, *, simulated: bool) -> None:
        document = {"run": asdict(run), "probe": probe.name, "simulated": simulated, "agent": own_mark()}
        try:
            beside = self._path.with_suffix(".new")
            beside.unlink(missing_ok=True)
            with beside.open("x", encoding="ascii") as file:  # creates it, so that it follows no link
                file.write(json.dumps(document))
            beside.replace(self._path)
        except OSError as error:
            hint = "if the agent is killed now, this run is lost"
            log.warning("cannot record the run in progress", extra={"id": run.id, "error": str(error), "hint": hint})

    def end(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot delete the record of the run", extra={"path": str(self._path), "error": str(error)})

    def interrupted_run(self) -> ProbeResult | None:
        """Return the result of a run that an earlier agent left unfinished, and delete the file.

        Return None if there is no such run, or if the file cannot be read. If the agent that wrote the file is still
        alive, return None and keep the file.
        """
        try:
            document = json.loads(trusted_file.read(self._path, MAX_BYTES))
            if is_other_agent_alive(document["agent"]):  # that agent owns the store and the run
                return None
            run, probe = Run(**document["run"]), PROBES[document["probe"]]
            result = skipped_result(probe, run, _CUT_SHORT, simulated=document["simulated"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.warning("cannot read the record of a run from before the start", extra={"error": str(error)})
            result = None
        self.end()
        return result
