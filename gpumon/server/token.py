"""The token that whatever starts work or changes state asks for: a file made at the first start."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

MODE = 0o640
SHORTEST = 16
"""Characters; what `ensure` writes has 43."""


class TokenError(Exception):
    """There is no usable token; the message names the file and the remedy."""


def ensure(path: Path) -> str:
    """Read the token, making the file first if there is none. Two that start at once read the same."""
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise TokenError(
                f"cannot make the token file {path}: {error.strerror}. Make its folder writable for the agent, or "
                "name another file with --web.token-file."
            ) from error
    return read(path)


def read(path: Path) -> str:
    """The token as the file holds it now."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise TokenError(
            f"there is no token file {path}. The agent makes it at its start; name the right one with --web.token-file."
        ) from error
    except OSError as error:
        raise TokenError(
            f"cannot read the token file {path}: {error.strerror}. Use sudo, or become a member of the file's group."
        ) from error
    except UnicodeDecodeError as error:
        raise TokenError(f"the token file {path} holds more than ASCII. Delete it and restart the agent.") from error
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise TokenError(
            f"the token file {path} holds no token of at least {SHORTEST} characters. Delete it and restart the agent."
        )
    return token


def warning(path: Path) -> str | None:
    """What is wrong with the permissions of the file, and the remedy."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return f"everybody on this host may read the token in {path} (mode {mode:04o}): chmod {MODE:04o} {path}"
    return None


def _make(path: Path) -> None:
    """Whole or not at all: written beside it, then linked to its name, which fails where another was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(beside)
    finally:
        beside.unlink()
