"""Dumps of the flight recorder: the pickle, the JSON, and files that no flight recorder writes."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case

from gpumon.cli.hang.dump import MAX_BYTES, MAX_OPERATIONS, load, recording
from gpumon.cli.hang.evidence import ReadError

RECORDINGS = Path(__file__).with_name("recordings")


def entry(sequence: int, **changed: Any) -> dict[str, Any]:
    """Return an entry as NCCL's recorder writes it."""
    return {
        "pg_id": 5,
        "process_group": ("35", "TENSOR_PARALLEL"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4096, 1, 5120]],
        "input_dtypes": ["BFloat16"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "time_created_ns": 1_758_610_505_000_000_000,
        **changed,
    }


def dump(*entries: dict[str, Any], version: str = "2.9") -> dict[str, Any]:
    """Return a dump of a rank in two groups, whose ids are not their names."""
    count = {"last_enqueued_collective": 7, "last_started_collective": -1, "last_completed_collective": 6}
    return {
        "version": version,
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "35": {"name": "35", "desc": "TENSOR_PARALLEL", "ranks": "[2, 3]"},
        },
        "pg_status": {0: count, 5: {**count, "last_enqueued_collective": 9}},
        "nccl_version": "2.27.3",
        "entries": list(entries),
    }


def test_pickle_and_json_of_a_dump_are_the_same_recording() -> None:
    """Numbers are text in JSON, and tuples are lists."""
    document = dump(entry(8), entry(9))
    texts = json.loads(json.dumps(document))
    texts["pg_status"] = {
        key: {name: str(each) for name, each in row.items()} for key, row in texts["pg_status"].items()
    }
    read = recording(load(pickle.dumps(document, protocol=2)))
    assert recording(load(json.dumps(texts).encode())) == read
    assert [str(each) for each in read.pending] == [f"nccl:all_reduce {each} of group 35" for each in (8, 9)]
    assert read.pending[0].sizes == "4096x1x5120 BFloat16"


def test_groups_without_entries_are_matched_by_their_order() -> None:
    """An empty ring has counts by id only; ids and names are both in the order in which groups were created."""
    groups = {group.name: group for group in recording(dump()).groups}
    assert (groups["35"].enqueued, groups["35"].completed, groups["35"].ranks) == (9, 6, (2, 3))


def test_counts_are_not_used_if_their_groups_are_ambiguous() -> None:
    """An entry contradicts the order, so the group without an entry has no count."""
    groups = {group.name: group for group in recording(dump(entry(3, pg_id=0))).groups}
    assert (groups["35"].enqueued, groups["0"].enqueued) == (3, None)


def test_entries_take_precedence_over_counts() -> None:
    """Counts include point-to-point operations."""
    (group,) = (each for each in recording(dump(entry(3, retired=True), entry(4))).groups if each.name == "35")
    assert (group.enqueued, group.completed, group.unrecorded) == (4, 3, True)


def test_the_only_group_of_gloo_has_its_ranks() -> None:
    """Gloo writes a group without a name: its ranks are those of the default group unless there are others."""
    alone, pairs = (
        recording(json.loads((RECORDINGS / f"{name}.json").read_text())["0"])
        for name in ("order_of_three", "sleeping_in_pairs")
    )
    assert [(each.name, each.ranks) for each in alone.groups] == [("0", (0, 1, 2))]
    assert {(each.name, each.ranks) for each in pairs.groups} == {("0", ()), ("1", ())}


class _Planted:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path("/tmp/gpumon-planted"),))  # type: ignore[return-value]


BOMB = b"\x80\x02]q" + b"\x00" + b"r" + struct.pack("<I", 0x7FFFFFF0) + b"."
"""A pickle of a few bytes that requests a memo of 32 GiB."""


@each_case(
    "content, message",
    [
        (pickle.dumps(_Planted()), "contains the class"),
        (pickle.dumps({"version": _Planted}), "contains the class"),
        (BOMB, "memory"),
        (b"\x80\x02.", "neither a pickle nor JSON"),
        (b"", "neither"),
        (b"{" * 100_000, "neither"),
        (b"Fault ranks: [1]", "neither"),
        (b"\x80" * (MAX_BYTES + 1), "larger than 64 MiB"),
    ],
    ids=["code", "class", "memo", "truncated", "empty", "nested", "text", "large"],
)
def test_what_no_recorder_writes_is_refused(content: bytes, message: str) -> None:
    """No class is looked up, no code runs, and the memory stays bounded."""
    with pytest.raises(ReadError, match=message):
        load(content)


def nested(depth: int) -> list[Any]:
    """Return a list whose text has 2 ** depth parts."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value, value]
    return value


@each_case(
    "document, message",
    [
        (dump(version="2.3"), "version is 2.3"),
        (dump(version="3.0"), "version is 3.0"),
        ([], "no dump"),
        ({"version": "2.9"}, "no dump"),
        (dump(entry(1, process_group=[])), "no dump"),
        (dump(entry(1, profiling_name=nested(60))), "no dump"),
        (dump(entry(1, input_sizes=[nested(60)])), "no dump"),
        ({**dump(), "pg_config": {"0": {"name": "0", "ranks": nested(60)}}}, "no dump"),
        (dump(entry(1, collective_seq_id=float("inf"))), "no dump"),
    ],
    ids=["old", "new", "list", "groups", "tuple", "name", "sizes", "ranks", "infinite"],
)
def test_a_malformed_dump_is_refused(document: Any, message: str) -> None:
    """Wrong types raise ReadError, and values with shared parts are not expanded."""
    with pytest.raises(ReadError, match=message):
        recording(document)


def test_text_of_the_job_is_bounded_and_printable() -> None:
    """A name cannot write to the terminal, and a long ring is cut."""
    document = dump(*[entry(1)] * (MAX_OPERATIONS + 1), entry(2, profiling_name="\x1b[2J" + "x" * 10_000))
    read = recording(document)
    assert len(read.operations) == MAX_OPERATIONS
    assert read.operations[-1].name.startswith("\N{REPLACEMENT CHARACTER}[2Jxxx")
    assert len(read.operations[-1].name) == 200
