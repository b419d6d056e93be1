"""Reads dumps of PyTorch's flight recorder, pickled or as JSON, of the versions 2.4 to 2.10.

A dump is written by the job: no class is unpickled, and every list and text is cut at a limit.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import resource
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpumon.cli.hang.evidence import MAX_RANKS, CodeLine, GroupStatus, ReadError, RecordedOperation, Recording
from gpumon.model.printable import printable

MAX_BYTES = 64 << 20
MAX_MEMORY = 1 << 30
"""Maximum bytes of memory that unpickling may add: a pickle of 10 bytes can request 16 GiB."""
MAX_OPERATIONS, MAX_GROUPS, MAX_FRAMES, MAX_SHAPES, MAX_TEXT = 20_000, 4096, 32, 8, 200
VERSIONS = re.compile(r"2\.(?:[4-9]|10)")
_MALFORMED = (pickle.UnpicklingError, ValueError, TypeError, LookupError, EOFError, AttributeError, ArithmeticError)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ReadError(f"it contains the class {safe_text(f'{module}.{name}')}, which no dump contains")


def load(content: bytes) -> Any:
    """Return the plain object in a pickle or JSON document. Raise ReadError if it is neither, or contains a class."""
    if len(content) > MAX_BYTES:
        raise ReadError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        with _limited_memory():
            return json.loads(content) if content[:1] == b"{" else _Unpickler(io.BytesIO(content)).load()
    except MemoryError as error:
        raise ReadError(f"it needs more than {MAX_MEMORY >> 30} GiB of memory") from error
    except (*_MALFORMED, RecursionError) as error:
        raise ReadError("it is neither a pickle nor JSON") from error


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    own = used + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (own if soft == resource.RLIM_INFINITY else min(own, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def recording(document: Any) -> Recording:
    """Return the content of a dump. Raise ReadError if its version or a type is not that of a dump."""
    try:
        version = safe_text(document["version"])
        if not VERSIONS.fullmatch(version):
            raise ReadError(f"its version is {version}: only 2.4 to 2.10 can be read")
        entries = list(document.get("entries") or ())[-MAX_OPERATIONS:]
        operations = tuple(_operation(entry) for entry in entries)
        nccl = safe_text(document.get("comm_lib_version", document.get("nccl_version", "")))
        return Recording(version, tuple(_groups(document, entries, operations)), operations, nccl)
    except _MALFORMED as error:
        raise ReadError("it is no dump of the flight recorder") from error


def _names_by_id(document: Any, entries: Sequence[Any]) -> dict[str, str]:
    """Return the name of each group by its id at this rank, which other ranks do not share.

    Entries have both. Groups without an entry are matched by their order of creation, if that agrees with all entries.
    """
    by_entry = {safe_text(entry["pg_id"]): safe_text(entry["process_group"][0]) for entry in entries}
    ids = sorted(map(safe_text, document.get("pg_status") or ()), key=lambda text: (len(text), text))
    names = sorted(
        (safe_text(row["name"]) for row in document["pg_config"].values()), key=lambda text: (len(text), text)
    )
    by_order = dict(zip(ids, names, strict=False)) if len(ids) == len(names) and all(map(str.isdecimal, names)) else {}
    return by_order if all(by_order.get(each) == name for each, name in by_entry.items()) else by_entry


def _groups(document: Any, entries: Sequence[Any], operations: Sequence[RecordedOperation]) -> Iterator[GroupStatus]:
    """Yield the groups in the configuration and in the entries.

    gloo writes no names, and the ranks of one group only, which are those of the default group if there is no other.
    """
    names = _names_by_id(document, entries)
    counts = {
        names[str(each)]: row for each, row in (document.get("pg_status") or {}).items() if safe_text(each) in names
    }
    descriptions = {safe_text(entry["process_group"][0]): entry["process_group"][1] for entry in entries}
    rows = {safe_text(row["name"]): row for row in list(document["pg_config"].values())[:MAX_GROUPS]}
    if list(rows) == [""]:
        own = {"desc": "", "ranks": rows[""]["ranks"] if len(counts) == 1 else ""}
        rows = {name: own | {"desc": descriptions.get(name, "")} for name in names.values()}
    by_group: dict[str, list[RecordedOperation]] = defaultdict(list)
    for each in operations:
        by_group[each.group].append(each)
    for name in list(dict.fromkeys([*rows, *by_group]))[:MAX_GROUPS]:
        row = rows.get(name, {"desc": descriptions.get(name, "")})
        yield _status(name, row, counts.get(name, {}), by_group[name])


def _status(name: str, row: Any, counts: Mapping[str, Any], own: Sequence[RecordedOperation]) -> GroupStatus:
    """Return the state of a group from its entries or, without any, its counts, which may include point-to-point."""
    enqueued, completed = (_sequence(counts.get(f"last_{each}_collective")) for each in ("enqueued", "completed"))
    counted = enqueued or 0
    if collectives := [each for each in own if not each.p2p]:
        enqueued = max(each.sequence for each in collectives)
        completed = min((each.sequence - 1 for each in collectives if not each.completed), default=enqueued)
    unrecorded = counted > (enqueued or 0) and len(collectives) == len(own)
    ranks = tuple(map(int, re.findall(r"\d{1,9}", row.get("ranks", "")[: MAX_RANKS * 8])))
    return GroupStatus(name, safe_text(row.get("desc", "")), ranks, enqueued, completed, unrecorded)


def _sequence(value: object) -> int | None:
    """Return a sequence number, which is text in JSON; None for -1, which means that there is none."""
    return int(value) if isinstance(value, (int, str)) and int(value) >= 0 else None


def _operation(entry: Any) -> RecordedOperation:
    p2p = bool(entry.get("is_p2p", False))
    shapes = ["x".join(map(safe_text, shape[:MAX_SHAPES])) for shape in (entry.get("input_sizes") or ())[:MAX_SHAPES]]
    types = [safe_text(each) for each in (entry.get("input_dtypes") or ())[:MAX_SHAPES]]
    types += [""] * (len(shapes) - len(types))
    return RecordedOperation(
        group=safe_text(entry["process_group"][0]),
        sequence=int(entry["p2p_seq_id" if p2p else "collective_seq_id"]),
        name=safe_text(entry.get("profiling_name", "")),
        completed=entry.get("state") == "completed" or bool(entry.get("retired", False)),
        p2p=p2p,
        sizes=safe_text(", ".join(f"{shape} {kind}".strip() for shape, kind in zip(shapes, types, strict=False))),
        enqueued_at=int(entry["time_created_ns"]) / 1e9 if "time_created_ns" in entry else None,
        stack=tuple(code_line(frame) for frame in (entry.get("frames") or ())[:MAX_FRAMES]),
    )


def code_line(frame: Any) -> CodeLine:
    """Return a frame of a dump, or of py-spy, which has the same names."""
    return CodeLine(safe_text(frame["filename"]), int(frame["line"]), safe_text(frame["name"]))


def safe_text(value: object) -> str:
    """Return a value of the job as text that is safe to print: bounded, and without control characters."""
    if not isinstance(value, (str, int)):  # the text of nested lists could fill the memory
        raise TypeError("a value has an unexpected type")
    return printable(str(value)[:MAX_TEXT])
