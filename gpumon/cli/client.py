"""Asks the running agent over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumon import __version__
from gpumon.config.health_file import LOOPBACK
from gpumon.server.token import TokenError, read

TIMEOUT_SECONDS = 10.0
AGENT = f"gpumon/{__version__}"
PROBLEM = ("detail", "remedy")
"""Members of every refusal."""


class ClientError(Exception):
    """The agent cannot be asked, or refuses; the message says why and what to do."""


class Refused(ClientError):  # noqa: N818 - it says what happened
    """The agent answered with a problem."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem['detail']} {problem['remedy']}")
        self.status = status
        self.problem = problem


class Absent(ClientError):  # noqa: N818 - it says what is so
    """Nobody listens at this address."""


@dataclass(frozen=True, slots=True)
class Client:
    """The agent at this address. `token_file` is read only for what asks for a token."""

    host: str
    port: int
    token_file: Path
    timeout: float = TIMEOUT_SECONDS

    def get(self, path: str, members: Collection[str]) -> Any:
        """The document at this path, whatever its status below 400; `members` are those it must have."""
        return self._ask("GET", path, members, {})

    def post(self, path: str, members: Collection[str]) -> Any:
        """Ask for something to be done."""
        return self.change("POST", path, members)

    def change(self, method: str, path: str, members: Collection[str]) -> Any:
        """The same by another method."""
        try:
            token = read(self.token_file)
        except TokenError as error:
            raise ClientError(str(error)) from error
        return self._ask(method, path, members, {"Authorization": f"Bearer {token}"})

    def _ask(self, method: str, path: str, members: Collection[str], headers: Mapping[str, str]) -> Any:
        try:
            status, body = self._exchange(method, path, headers)
            return _document(status, body, members)
        except OSError as error:
            kind = Absent if isinstance(error, ConnectionRefusedError) else ClientError
            raise kind(
                f"no agent answers at {self._address} ({error.strerror or error}). Start it (systemctl start gpumon), "
                "or name its address with --web.listen-address; `gpumon check` tells what it knew at last."
            ) from error
        except (http.client.HTTPException, _Foreign) as error:
            what = str(error) if isinstance(error, _Foreign) else type(error).__name__
            raise ClientError(
                f"what answers at {self._address} is no gpumon, or one of another version ({method} {path}: {what}). "
                "After an upgrade restart it; else `ss -ltnp` names who listens there: name the agent's address with "
                "--web.listen-address."
            ) from error

    @property
    def _address(self) -> str:
        return f"{self.host or '*'}:{self.port}"

    def _exchange(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(LOOPBACK.get(self.host, self.host), self.port, timeout=self.timeout)
        try:
            connection.request(method, path, headers={"User-Agent": AGENT, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class _Foreign(Exception):  # noqa: N818 - it says what answered
    """No answer of gpumon; the message says what it is instead."""


def _document(status: int, body: bytes, members: Collection[str]) -> Any:
    """The answer, which is an object with these members. Raises Refused for a problem, _Foreign for all else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Foreign(f"status {status}, no JSON") from error
    refused = status >= http.client.BAD_REQUEST
    lacking = set(PROBLEM if refused else members) - set(document if isinstance(document, dict) else ())
    if not isinstance(document, dict) or lacking:
        raise _Foreign(f"status {status}, JSON without {', '.join(sorted(lacking)) or 'members'}")
    if refused:
        raise Refused(status, document)
    return document
