"""Token for requests over TCP that start work or change state. Its file is created at the first start of the agent."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from gpumon import trusted_file

MODE = 0o640
MAX_BYTES = 4096
MIN_LENGTH = 16
"""Minimum number of characters of a token. A token that `ensure` creates has 43."""


class TokenError(Exception):
    """Raised if there is no usable token. The message names the file and the remedy."""


def ensure(path: Path) -> str:
    """Return the token in the file; create the file if it does not exist. Raise TokenError if no token is usable."""
    if not path.exists():
        try:
            _create(path)
        except OSError as error:
            raise TokenError(
                f"cannot create the token file {path}: {error.strerror}. Make its directory writable for the agent, or "
                "give another file with --web.token-file."
            ) from error
    return read(path)


def read(path: Path) -> str:
    """Return the token in the file. Raise TokenError if the file is missing, unreadable or invalid."""
    try:
        token = trusted_file.read(path, MAX_BYTES).decode("ascii").strip()
    except FileNotFoundError as error:
        raise TokenError(
            f"there is no token file {path}. The agent creates it at its start; give its path with --web.token-file."
        ) from error
    except trusted_file.UntrustedFileError as error:
        raise TokenError(f"the token file {path} {error.reason}. Delete it and restart the agent.") from error
    except OSError as error:
        raise TokenError(
            f"cannot read the token file {path}: {error.strerror}. Use sudo, or join the file's group."
        ) from error
    except UnicodeDecodeError as error:
        raise TokenError(f"the token file {path} is not ASCII. Delete it and restart the agent.") from error
    if len(token) < MIN_LENGTH or not token.isprintable() or " " in token:
        raise TokenError(
            f"the token file {path} has no token of {MIN_LENGTH} characters or more. Delete it and restart the agent."
        )
    return token


def warning(path: Path) -> str | None:
    """Return a warning with a remedy if every user may read or write the token file; None otherwise."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return f"every user can read or write the token in {path} (mode {mode:04o}): chmod {MODE:04o} {path}"
    return None


def _create(path: Path) -> None:
    """Write a new token to a temporary file, and link that file to `path` unless another agent created `path` first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, MODE)  # independent of the umask
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink()
