"""The store of an agent that does not run is read as it is, and left as it is."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_events import WALL

from gpumon.cli.fitness import stored_health
from gpumon.cli.fitness.node_health import Unknowable
from gpumon.clock import boot_clock, boot_id
from gpumon.health.terms import FAIL, WARN, Action, Level
from gpumon.health.verdict import Verdict, VerdictChange, VerdictTransition
from gpumon.model.maintenance import Maintenance
from gpumon.model.stored_gpu import StoredGpu
from gpumon.outputs.inventory_table import render_inventory
from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.outputs.words import rfc3339
from gpumon.store import boards
from gpumon.store.store import Store

BOARD = StoredGpu(
    uuid="GPU-3", bus_id="00000000:61:00.0", serial="", name="H100", first_wall=time.time(), last_wall=time.time()
)
LEFT = f"""\
import os, signal, sys
from pathlib import Path
from typing import Any
from gpumon.store.store import Store
from gpumon.health.terms import FAIL, Action
from gpumon.health.verdict import Verdict, VerdictChange, VerdictTransition
store = Store.open(Path(sys.argv[1]))
verdict = Verdict(check="gpu_lost", device="GPU-3", level=FAIL, reason="Gone.", action=Action.REBOOT,
    since={WALL}, seen={WALL}, seen_at=1.0, boot_id="b")
store.rule([VerdictTransition(verdict=verdict, change=VerdictChange.RAISED, wall={WALL})])
os.kill(os.getpid(), signal.SIGKILL)
"""


def verdict(check: str, level: Level, device: str = "GPU-3", since: float = WALL) -> Verdict:
    return Verdict(
        check=check,
        device=device,
        level=level,
        reason="Gone.",
        action=Action.REBOOT,
        since=since,
        seen=since,
        seen_at=1.0,
        boot_id="b",
    )


def rule(store: Store, *verdicts: Verdict) -> None:
    store.rule([VerdictTransition(verdict=one, change=VerdictChange.RAISED, wall=WALL) for one in verdicts])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _inventory(store: sqlite3.Connection) -> Any:
    return InventoryResponse.from_store(boards.every(store), None).document()


def test_what_stood_is_told_the_worst_first(tmp_path: Path) -> None:
    """Of an agent that was stopped: verdicts in the words of /api/v1/health, and the GPUs."""
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_boards([BOARD])
        rule(store, verdict("some_warning", WARN), verdict("gpu_lost", FAIL))
    before = files(tmp_path)
    known = stored_health.read(str(tmp_path / "gpumon.db"))
    assert known.level is FAIL
    assert [fault.verdict["check"] for fault in known.faults] == ["gpu_lost", "some_warning"]
    assert (told := known.faults[0].verdict)["action"] == "none", "it was of another boot"
    assert (told["repair"], told["action_words"]) == ("reboot", "if it comes back, reboot the node")
    assert told["repaired"] < rfc3339(time.time())
    assert [(gpu.uuid, gpu.bus_id) for gpu in known.gpus] == [(BOARD.uuid, BOARD.bus_id)]
    assert files(tmp_path) == before


def test_only_a_reboot_since_answers_what_stood(tmp_path: Path) -> None:
    """Of this boot it is asked for still; and no reboot replaces a part."""
    with Store.open(tmp_path / "gpumon.db") as store:
        worn = verdict("memory_worn", FAIL)._replace(action=Action.REPLACE)
        rule(store, verdict("gpu_lost", FAIL)._replace(boot_id=boot_id()), worn)
    told = {fault.verdict["check"]: fault.verdict for fault in stored_health.read(str(tmp_path / "gpumon.db")).faults}
    assert (told["gpu_lost"]["action"], told["gpu_lost"]["repair"]) == ("reboot", None)
    assert (told["memory_worn"]["action_words"], told["memory_worn"]["repair"]) == ("replace the part", None)


def test_what_a_killed_agent_left_in_its_wal_is_told(tmp_path: Path) -> None:
    """SIGKILL right after the verdict was stored; nothing is written, and the next agent finds it all."""
    path = tmp_path / "gpumon.db"
    left = subprocess.run([sys.executable, "-c", textwrap.dedent(LEFT), str(path)], check=False, timeout=60)
    assert left.returncode == -signal.SIGKILL
    before = files(tmp_path)
    assert before["gpumon.db-wal"]
    assert [fault.verdict["check"] for fault in stored_health.read(str(path)).faults] == ["gpu_lost"]
    assert files(tmp_path) == before
    with Store.open(path) as store:
        assert [one.check for one in store.open_verdicts()] == ["gpu_lost"]


def test_an_agent_that_writes_meanwhile_is_not_disturbed(tmp_path: Path) -> None:
    """A hung agent holds the file: it is read all the same, and can be written again."""
    path = tmp_path / "gpumon.db"
    with Store.open(path) as store:
        rule(store, verdict("gpu_lost", FAIL))
        assert len(stored_health.read(str(path)).faults) == 1
        rule(store, verdict("other", WARN))
        assert len(stored_health.read(str(path)).faults) == 2


def test_one_fault_is_one_fault_without_the_agent(tmp_path: Path) -> None:
    """What follows from a verdict, directly or not, stands under it."""
    with Store.open(tmp_path / "gpumon.db") as store:
        rule(
            store,
            verdict("work_lost", WARN, since=WALL - 9)._replace(under=("gpumon_links_unread", "GPU-3")),
            verdict("gpumon_links_unread", FAIL)._replace(under=("gpu_lost", "GPU-3")),
            verdict("gpu_lost", FAIL, since=WALL + 1),
            verdict("gpu_row_remap_failed", FAIL, "GPU-4")._replace(under=("cleared_meanwhile", "GPU-4")),
        )
    told = {
        fault.verdict["check"]: [one["check"] for one in fault.consequences]
        for fault in stored_health.read(str(tmp_path / "gpumon.db")).faults
    }
    assert told == {"gpu_row_remap_failed": [], "gpu_lost": ["gpumon_links_unread", "work_lost"]}


def test_a_gpu_that_is_missing_leaves_its_index_to_the_one_that_has_it(tmp_path: Path) -> None:
    """After a reboot the driver counts those that are here: nobody is to blame the GPU that has the number now."""
    other = replace(BOARD, uuid="GPU-4", bus_id="00000000:9D:00.0", last_wall=BOARD.last_wall + 60, gpu=3)
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_boards([replace(BOARD, gpu=3), other])
        rule(store, verdict("gpu_missing", FAIL))
    known = stored_health.read(str(tmp_path / "gpumon.db"))
    assert [(gpu.number, gpu.uuid) for gpu in known.gpus] == [(3, "GPU-4"), (None, "GPU-3")]
    assert known.faults[0].verdict["gpu"] is None
    told = stored_health.inquire(
        str(tmp_path / "gpumon.db"), lambda one: InventoryResponse.from_store(boards.every(one), None).document()
    )
    assert [(gpu["gpu"], gpu["uuid"]) for gpu in told["gpus"]] == [(3, "GPU-4"), (None, "GPU-3")]
    assert "GPU-3" in render_inventory(told)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_board_that_was_replaced_is_said_to_be(tmp_path: Path, *, accepted: bool) -> None:
    """Another is in its place, or nobody has accepted that any is gone: the store does not keep why."""
    former = replace(BOARD, uuid="GPU-former", expected=False, last_wall=BOARD.last_wall - 60)
    lost = replace(former, uuid="GPU-lost", bus_id="00000000:9D:00.0")
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_boards([replace(BOARD, gpu=3), former, lost])
        if accepted:
            store.accept(1, ["GPU-lost"])
    told = stored_health.inquire(
        str(tmp_path / "gpumon.db"),
        lambda one: InventoryResponse.from_store(boards.every(one), boards.accepted(one)).document(),
    )
    assert {gpu["uuid"]: gpu["why"] for gpu in told["gone"]} == {
        "GPU-former": "replaced",
        "GPU-lost": "accepted" if accepted else "replaced",
    }
    assert "GPU-former at 00000000:61:00.0 was replaced." in render_inventory(told)


def test_maintenance_is_known_without_the_agent(tmp_path: Path) -> None:
    """In force, not ended, not over."""
    path, now, at = tmp_path / "gpumon.db", time.time(), boot_clock()
    here = Maintenance(
        began=1.0,
        began_at=at - 500,
        until=now + 500,
        deadline=at + 500,
        boot_id=boot_id(),
        reason="new DIMMs",
        by="api",
    )
    cases = {
        "over": replace(here, deadline=at - 5),
        "ended": replace(here, ended=now - 100),
        "here": here,
        "clock set forth": replace(here, until=now - 86_400),
        "rebooted": replace(here, boot_id="before"),
        "rebooted, never set": replace(here, boot_id="before", until=now + 1e9, deadline=at + 1e6),
    }
    told = {}
    for number, (name, one) in enumerate(cases.items()):
        with Store.open(path) as store:
            store.keep_spans([replace(one, began=float(number))])
        told[name] = str(stored_health.read(str(path)).maintenance).endswith(" UTC: new DIMMs")
    assert [name for name, known in told.items() if not known] == ["over", "ended"]


def test_no_store_is_no_answer(tmp_path: Path) -> None:
    """It is not made, either."""
    with pytest.raises(Unknowable, match=r"no store .*none\.db"):
        stored_health.read(str(tmp_path / "none.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100], ids=["empty", "text"])
def test_another_file_is_no_answer(tmp_path: Path, content: bytes) -> None:
    """The message names it."""
    (tmp_path / "gpumon.db").write_bytes(content)
    with pytest.raises(Unknowable, match=r"gpumon\.db cannot be read"):
        stored_health.read(str(tmp_path / "gpumon.db"))


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """Who is neither root nor of its group, for as long as the block lasts."""
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_read_is_told_how_to() -> None:
    """Folder or file: the message names the store and the remedy. Who may read needs no more than that."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders let nobody else pass
        path = Path(folder) / "gpumon.db"
        with Store.open(path) as store:
            rule(store, verdict("gpu_lost", FAIL))
        path.chmod(0o600)
        for mode in (0o700, 0o755):
            path.parent.chmod(mode)
            with somebody_else(), pytest.raises(Unknowable, match=r"uid 65534 may not read the store .*: use sudo"):
                stored_health.read(str(path))
        path.chmod(0o644)
        with somebody_else():
            assert [fault.verdict["check"] for fault in stored_health.read(str(path)).faults] == ["gpu_lost"]
