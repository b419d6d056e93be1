"""Asks the running agent over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumon.serve.token import TokenError, read

TIMEOUT_SECONDS = 10.0
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a listen address, to be asked locally


class ClientError(Exception):
    """The agent cannot be asked, or refuses; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Client:
    """The agent at this address. `token_file` is read only for what asks for a token."""

    host: str
    port: int
    token_file: Path

    def get(self, path: str) -> Any:
        """The document at this path, whatever its status below 400."""
        return self._ask("GET", path, {})

    def post(self, path: str) -> Any:
        """Ask for something to be done."""
        try:
            token = read(self.token_file)
        except TokenError as error:
            raise ClientError(str(error)) from error
        return self._ask("POST", path, {"Authorization": f"Bearer {token}"})

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        connection = http.client.HTTPConnection(ANYWHERE.get(self.host, self.host), self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            raise ClientError(
                f"no agent answers at {self.host or '*'}:{self.port} ({error}). Is it running? "
                "Start it with `gpumon serve`, or name its address with --web.listen-address."
            ) from error
        finally:
            connection.close()
        return _document(answer.status, body, path)


def _document(status: int, body: bytes, path: str) -> Any:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise ClientError(f"{path} answered {status} with no JSON: is something else listening there?") from error
    if status >= http.client.BAD_REQUEST:
        detail, remedy = (str(document.get(name, "")) for name in ("detail", "remedy"))
        raise ClientError(f"{detail} {remedy}".strip() or f"{path} answered {status}")
    return document
