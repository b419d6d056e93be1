"""Reading the store of an agent that does not run, without changing it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stores import read, write

from gpumon.model.stored_gpu import StoredGpu
from gpumon.outputs.inventory_table import render_inventory
from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.store import gpus
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

BOARD = StoredGpu(
    uuid="GPU-3", bus_id="00000000:61:00.0", serial="", name="H100", first_wall=time.time(), last_wall=time.time()
)
KILLED = """\
import os, signal, sys
from pathlib import Path
from gpumon.model.stored_gpu import StoredGpu
from gpumon.store import gpus
from gpumon.store.store import Store
store = Store.open(Path(sys.argv[1]))
with store.writing() as connection:
    gpus.put(connection, [StoredGpu(uuid="GPU-3", bus_id="0", serial="", name="H100", first_wall=1.0, last_wall=1.0)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpumon.db"


def file_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def uuids(path: Path) -> list[str]:
    with Store.open_copy(path) as store:
        return [board.uuid for board in read(store, gpus.read)]


def test_the_wal_of_a_killed_agent_is_read(path: Path) -> None:
    """A row in the WAL of a killed agent is read without a change of the files, and again by the next agent."""
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    before = file_contents(path.parent)
    assert before["gpumon.db-wal"]
    assert uuids(path) == ["GPU-3"]
    assert file_contents(path.parent) == before
    with Store.open(path) as store:
        assert [board.uuid for board in read(store, gpus.read)] == ["GPU-3"]


def test_a_store_in_use_can_be_read(path: Path) -> None:
    """The store of a running agent can be read, and written by that agent afterwards."""
    with Store.open(path) as store:
        write(store, gpus.put, [BOARD])
        assert uuids(path) == ["GPU-3"]
        write(store, gpus.put, [replace(BOARD, uuid="GPU-4")])
        assert len(uuids(path)) == 2


def test_a_missing_gpu_has_no_index(path: Path) -> None:
    """If two stored GPUs have the same index, only the one that was read last is listed with it."""
    other = replace(BOARD, uuid="GPU-4", bus_id="00000000:9D:00.0", last_wall=BOARD.last_wall + 60, gpu=3)
    with Store.open(path) as store:
        write(store, gpus.put, [replace(BOARD, gpu=3), other])
    with Store.open_copy(path) as store:
        document = InventoryResponse.from_store(read(store, gpus.read), None).document()
    assert [(gpu["gpu"], gpu["uuid"]) for gpu in document["gpus"]] == [(3, "GPU-4"), (None, "GPU-3")]
    assert "GPU-3" in render_inventory(document)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_replaced_board_is_reported_as_replaced(path: Path, *, accepted: bool) -> None:
    """A former GPU is listed as replaced, or as accepted if an operator has accepted its absence."""
    former = replace(BOARD, uuid="GPU-former", expected=False, last_wall=BOARD.last_wall - 60)
    lost = replace(former, uuid="GPU-lost", bus_id="00000000:9D:00.0")
    with Store.open(path) as store:
        write(store, gpus.put, [replace(BOARD, gpu=3), former, lost])
        if accepted:
            write(store, gpus.accept, 1, ["GPU-lost"])
    with Store.open_copy(path) as store:
        document = InventoryResponse.from_store(read(store, gpus.read), read(store, gpus.accepted_count)).document()
    assert {gpu["uuid"]: gpu["reason"] for gpu in document["former_gpus"]} == {
        "GPU-former": "replaced",
        "GPU-lost": "accepted" if accepted else "replaced",
    }


def test_a_missing_store_is_not_created(path: Path) -> None:
    """The error for a missing store names the flag, and no file is created."""
    with pytest.raises(StoreError, match=r"there is no such store; name it with --store\.path"):
        Store.open_copy(path)
    assert not list(path.parent.iterdir())


def test_another_file_is_refused(path: Path) -> None:
    """The error for a file that is not a store names the file."""
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"gpumon\.db: it is not a store of gpumon"):
        Store.open_copy(path)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Run as a user that is neither root nor in its group."""
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
def test_read_permission_is_sufficient() -> None:
    """Read permission is sufficient; without it the error is "permission denied"."""
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's own folders
        path = Path(folder) / "gpumon.db"
        with Store.open(path) as store:
            write(store, gpus.put, [BOARD])
        path.chmod(0o600)
        for mode in (0o700, 0o755):
            path.parent.chmod(mode)
            with another_user(), pytest.raises(StoreError, match="permission denied"):
                Store.open_copy(path)
        path.chmod(0o644)
        with another_user():
            assert uuids(path) == ["GPU-3"]
