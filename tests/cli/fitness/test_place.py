"""Where the agent is: as given, as it left word, as configured."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpumon.cli.fitness import agent_location
from gpumon.cli.fitness.agent_location import LISTEN, STORE, Place, find
from gpumon.cli.fitness.node_health import Unknowable
from gpumon.config import agent_file
from gpumon.config.agent_file import Beacon
from gpumon.config.settings import FLAGS, settings

CONFIGURED = ("", 17400), "/var/lib/gpumon/gpumon.db"


def left(path: Path, port: int, store: str, host: str = "127.0.0.1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    agent_file.write(Beacon(host=host, port=port, store=store, pid=1, version="0"), str(path))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A host of its own."""
    return {"STATE_DIRECTORY": str(tmp_path / "state"), "RUNTIME_DIRECTORY": str(tmp_path / "run")}


def asked(environ: dict[str, str], **flags: str) -> Place:
    return find({{"listen": LISTEN, "store": STORE}[name]: value for name, value in flags.items()}, environ, never)


def never() -> tuple[tuple[str, int], str]:
    raise AssertionError("the configuration is slow to read")


def test_flags_are_those_of_the_table_of_settings() -> None:
    """Names are written here because the table is slow to import; they are the same."""
    known = {flag.name for flag in FLAGS}
    variables = {row.flag: row.variable for row in settings().values()}
    assert set(agent_location.VARIABLES) <= known
    assert {
        flag: variables.get(flag, variable) for flag, variable in agent_location.VARIABLES.items()
    } == agent_location.VARIABLES


def test_the_unit_has_left_word_for_everybody(environ: dict[str, str], tmp_path: Path) -> None:
    """That of systemd's runtime directory, before one that somebody started by hand."""
    left(tmp_path / "state" / "gpumon.db.agent.json", 1, "/by/hand.db")
    left(tmp_path / "run" / "agent.json", 2, "/of/unit.db")
    assert asked(environ) == Place("127.0.0.1", 2, "/of/unit.db")
    (tmp_path / "run" / "agent.json").unlink()
    assert asked(environ) == Place("127.0.0.1", 1, "/by/hand.db")


def test_a_store_names_its_agent(environ: dict[str, str], tmp_path: Path) -> None:
    """Of several on a host each has its own store, with word beside it."""
    left(tmp_path / "run" / "agent.json", 2, "/of/unit.db")
    one, other = str(tmp_path / "one.db"), str(tmp_path / "other.db")
    left(Path(agent_file.beside(one)), 3, one)
    left(Path(agent_file.beside(other)), 4, other, "::1")
    assert asked(environ, store=one) == Place("127.0.0.1", 3, one)
    assert asked({**environ, "GPUMON_STORE__PATH": other}) == Place("::1", 4, other)


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        (":17400", "127.0.0.1", 17400),
        ("0.0.0.0:1", "127.0.0.1", 1),
        ("[::]:1", "::1", 1),
        ("[fe80::1]:1", "fe80::1", 1),
        ("gpu-17:1", "gpu-17", 1),
    ],
)
def test_a_listen_address_is_asked_where_it_can_be(environ: dict[str, str], given: str, host: str, port: int) -> None:
    """One that stands for all addresses is asked on loopback; from the environment as from the flag."""
    assert asked(environ, listen=given) == Place(host, port, None)
    assert asked({**environ, "GPUMON_WEB__LISTEN_ADDRESS": given}) == Place(host, port, None)


def test_the_store_of_another_agent_is_not_taken(environ: dict[str, str], tmp_path: Path) -> None:
    """With an address alone, only the agent that left word of this port is meant."""
    left(tmp_path / "run" / "agent.json", 17400, "/of/unit.db")
    assert asked(environ, listen="127.0.0.1:17400").store == "/of/unit.db"
    assert asked(environ, listen="127.0.0.1:10401").store is None
    assert asked(environ, listen="127.0.0.1:10401", store="/x.db").store == "/x.db"


def test_a_free_port_is_known_to_the_agent_alone(environ: dict[str, str], tmp_path: Path) -> None:
    """Port 0 in flag or environment is no address to ask."""
    store = str(tmp_path / "gpumon.db")
    left(Path(agent_file.beside(store)), 5, store)
    assert asked({**environ, "GPUMON_WEB__LISTEN_ADDRESS": "127.0.0.1:0"}, store=store).port == 5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"host": 1, "port": "x"}'])
def test_without_word_the_configuration_is_read(environ: dict[str, str], tmp_path: Path, text: str) -> None:
    """None, a torn one, or one of another version."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "agent.json").write_text(text)
    assert find({}, environ, lambda: CONFIGURED) == Place("127.0.0.1", 17400, CONFIGURED[1])


def test_a_named_configuration_is_read(environ: dict[str, str], tmp_path: Path) -> None:
    """--config.file may describe another agent than the one that left word."""
    left(tmp_path / "run" / "agent.json", 2, "/of/unit.db")
    assert find({"--config.file": "x.yml"}, environ, lambda: CONFIGURED).port == 17400


def test_what_is_no_address_is_refused(environ: dict[str, str]) -> None:
    """The message names it."""
    with pytest.raises(Unknowable, match="localhost"):
        asked(environ, listen="localhost")


def test_word_is_for_everybody_to_read_and_nobody_to_write(tmp_path: Path) -> None:
    """Whatever the umask; whole or not at all, and nothing else is left behind."""
    before = os.umask(0o077)
    try:
        left(tmp_path / "agent.json", 1, "/a.db")
        left(tmp_path / "agent.json", 2, "/a.db")
    finally:
        os.umask(before)
    [path] = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert agent_file.read(str(path)) == Beacon(host="127.0.0.1", port=2, store="/a.db", pid=1, version="0")


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("gpumon.cli.check", {"dataclasses", "pathlib", "sqlite3", "gpumon.health.verdict"}),
        (
            "gpumon.cli.fitness.stored_health",
            {"dataclasses", "pathlib", "logging", "shutil", "gpumon.health.check"},
        ),
    ],
)
def test_a_check_imports_nothing_slow(module: str, slow: set[str]) -> None:
    """Python's own start is most of what an answer may cost; without an agent it is more, and still no table."""
    question = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {question}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert module in told.split()
    assert slow.isdisjoint(told.split())
