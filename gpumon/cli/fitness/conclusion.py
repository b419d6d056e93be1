"""From what is known to one answer: exit code and one line. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpumon.cli.fitness.node_health import LEVELS, Document, Fault, GpuRecord, Known
from gpumon.health.terms import FAIL, HISTORY_UNREAD, OK, UNKNOWN, WARN, Action, Level, Way

EXIT = {OK: 0, WARN: 1, FAIL: 2, UNKNOWN: 3}
"""As Nagios and Slurm's people read them."""
PORT = "/"
"""In the name of each port's device, and of no GPU's."""
REPAIRED: Mapping[str | None, str] = {Way.REBOOT.value: "The node was rebooted", Way.RESET.value: "The GPU was reset"}
"""What was done since the verdict was last so, by `repair` of it."""
SILENCE = frozenset(
    {"gpu_denied", "gpu_init_failed", "gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_stuck", "gpu_unreadable"}
)
"""Checks that say why a GPU does not answer: who ignores them lives with that. What a GPU said before is no excuse."""
COUNTING = frozenset({"gpu_count_mismatch", "gpu_missing"})
"""Checks that say that a GPU is not here: who ignores them lives with that. A job has its own, whoever else is here."""
UNWATCHED = (OK, WARN, UNKNOWN, FAIL)
"""What hides what while nobody tells how it is now, or how it was: a warning is no answer, a failure still is."""


class Answer(NamedTuple):
    """What is printed, and the exit code."""

    level: Level
    line: str
    known: Known
    verdicts: tuple[Document, ...] = ()
    gpus: tuple[GpuRecord, ...] = ()
    """Those that were asked for."""

    @property
    def code(self) -> int:
        return EXIT[self.level]

    @property
    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "level": self.level.word,
            "exit_code": self.code,
            "line": self.line,
            "source": self.known.source,
            "trouble": self.known.trouble or None,
            "maintenance": self.known.maintenance,
            "gpus": [{"gpu": one.number, "uuid": one.uuid, "pci_bus_id": one.bus_id} for one in self.gpus],
            "verdicts": list(self.verdicts),
        }


def answer(known: Known, job: Collection[GpuRecord] | None = None, ignored: Collection[str] = ()) -> Answer:
    """Of the whole node, or with `job` of these GPUs and what concerns every job. `ignored`: names of checks."""
    silent = {
        fault.verdict["device"] for fault in known.faults if fault.verdict["check"] in SILENCE.intersection(ignored)
    }
    asked = known.gpus if job is None else job
    gpus = tuple(gpu._replace(unwatched="") if gpu.uuid in silent else gpu for gpu in asked)
    faults = tuple(fault for fault in known.faults if fault.verdict["check"] not in ignored)
    if job is not None:
        faults = tuple(_of_job(faults, {gpu.uuid for gpu in job}))
    whole = job is None and not ignored
    if job is not None or COUNTING.intersection(ignored):
        known = known._replace(awaited=0)
    order = _order(known, gpus, faults)
    verdicts = tuple(sorted((fault.verdict for fault in faults), key=lambda one: -order.index(LEVELS[one["level"]])))
    level = _level(known, gpus, verdicts, order, whole=whole)
    line = f"GPU {level.name}: {_words(known, gpus, verdicts, of_job=job is not None)}"
    return Answer(level=level, line=_one_line(line + _notes(known)), known=known, verdicts=verdicts, gpus=gpus)


def _of_job(faults: Collection[Fault], own: Collection[str]) -> Iterator[Fault]:
    """Faults of its GPUs, of the node and its ports, and what faults of other GPUs do to its own, but not those."""
    for fault in faults:
        device = fault.verdict["device"]
        if device is None or PORT in device or device in own:
            yield fault
        else:
            yield from (Fault(verdict=one) for one in fault.consequences if one["device"] in own)


def _level(
    known: Known, gpus: Collection[GpuRecord], verdicts: Sequence[Document], order: Sequence[Level], *, whole: bool
) -> Level:
    """Of the whole node as `gpumon_node_health` has it."""
    found = [LEVELS[one["level"]] for one in verdicts]
    found += [known.level] if whole else []
    found += [UNKNOWN] if known.trouble or _unseen(known, gpus) else []
    return max(found, default=OK, key=order.index)


def _order(known: Known, gpus: Iterable[GpuRecord], faults: Iterable[Fault]) -> Sequence[Level]:
    """From the mildest to the worst."""
    past_unread = any(fault.verdict["check"] == HISTORY_UNREAD for fault in faults)
    return UNWATCHED if known.trouble or past_unread or _unseen(known, gpus) else tuple(Level)


def _words(known: Known, gpus: Collection[GpuRecord], verdicts: Sequence[Document], *, of_job: bool) -> str:
    if known.trouble and verdicts:
        worst = _worst(verdicts)
        failed = LEVELS[verdicts[0]["level"]] is FAIL
        return f"{worst} So it was at last: {known.trouble}" if failed else f"{known.trouble} At last: {worst}"
    if known.trouble:
        return known.trouble
    unseen = _unseen(known, gpus)
    if unseen and all(LEVELS[one["level"]] is WARN for one in verdicts):
        return unseen + _more(len(verdicts))
    return _worst(verdicts) if verdicts else _well(gpus, of_job=of_job)


def _unseen(known: Known, gpus: Iterable[GpuRecord]) -> str:
    """Of which GPU nobody can tell how it is now, in words; empty: of none."""
    if not known.gpus:
        return "no GPU is known here: is the driver loaded?"
    blind = next((gpu for gpu in gpus if gpu.unwatched), None)
    if blind is not None:
        return f"{blind.name}: {blind.unwatched}, so nobody can tell how it is."
    if not known.awaited:
        return ""
    missed = f"{known.awaited} GPU{'s' * (known.awaited != 1)}"
    return f"the driver does not count {missed} that should be here. `gpumon inventory` shows which; ask again soon."


def _well(gpus: Collection[GpuRecord], *, of_job: bool) -> str:
    if not of_job:
        return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)} well."
    return f"{', '.join(gpu.name for gpu in gpus)} well." if gpus else "the job has no GPU; the node is well."


def _worst(verdicts: Sequence[Document]) -> str:
    first, *more = verdicts
    where = "" if first["gpu"] is None and not first["device"] else f"{_device(first)}: "
    return f"{where}{first['reason'].rstrip('.')}.{_todo(first)}{_more(len(more))}"


def _more(count: int) -> str:
    return f" (+{count} more)" if count else ""


def _todo(verdict: Document) -> str:
    """Nobody should reboot or reset again because that was done just now."""
    if repaired := REPAIRED.get(verdict.get("repair")):
        return f" {repaired} since: {verdict['action_words']}."
    return "" if verdict["action"] == Action.NONE else f" Do: {verdict['action_words']}."


def _device(verdict: Document) -> str:
    return str(verdict["device"]) if verdict["gpu"] is None else f"GPU {verdict['gpu']}"


def _notes(known: Known) -> str:
    """What must be read with it."""
    return f" [maintenance {known.maintenance}]" if known.maintenance else ""


def _one_line(text: str) -> str:
    """Nagios takes what stands behind a bar for numbers."""
    return " ".join(text.replace("|", "/").split())
