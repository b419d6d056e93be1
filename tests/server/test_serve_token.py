"""The token file."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.server.token import TokenError, ensure, read, warning


def test_first_start_creates_the_file(tmp_path: Path) -> None:
    """Long, random, for owner and group only whatever the umask, in a new directory."""
    path = tmp_path / "state" / "token"
    before = os.umask(0)
    try:
        token = ensure(path)
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert read(path) == token == ensure(path)
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_two_agents_create_one_token(tmp_path: Path) -> None:
    """The file is written at once and never overwritten."""
    path = tmp_path / "token"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(ensure, [path] * 32))
    assert tokens == {read(path)}


@each_case("content", [b"", b"\n", b"short\n", b"two words of a token\n", b"caf\xc3\xa9-caf\xc3\xa9-caf\xc3\xa9"])
def test_unusable_token_is_an_error(tmp_path: Path, content: bytes) -> None:
    """An empty token would disable authentication."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=r"Delete it and restart") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(TokenError, match=r"there is no token file .*--web\.token-file"):
        read(tmp_path / "token")


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """A directory in its place, and a file in place of its directory."""
    with pytest.raises(TokenError, match=r"is not a regular file"):
        read(tmp_path)
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(TokenError, match=r"cannot read the token file .*symbolic links"):
        read(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TokenError, match=r"is not a regular file"):
        read(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(TokenError, match=r"cannot create the token file"):
        ensure(tmp_path / "file" / "token")


def test_world_readable_token_is_a_warning(tmp_path: Path) -> None:
    """The warning has the command that fixes it."""
    path = tmp_path / "token"
    ensure(path)
    assert warning(path) is None
    path.chmod(0o644)
    assert f"chmod 0640 {path}" in (warning(path) or "")
    path.chmod(0o642)
    assert "can read or write" in (warning(path) or "")
