"""The HTTP client with which commands send requests to a running agent."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import struct
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from gpumon import __version__
from gpumon.cli.command_parser import UserError
from gpumon.server.token import TokenError, read

TIMEOUT_SECONDS = 10.0
AGENT = f"gpumon/{__version__}"
MAX_BODY, BYTES_PER_VALUE = 16 << 20, 16
"""Maximum bytes of the body of a response, and bytes of that for each JSON value, because the sender is not trusted."""
PROBLEM = ("detail", "remedy")
"""Names of the members that every JSON error response of the agent has."""
STORED_LATER = (
    "The store cannot be written now. The agent writes this when the store recovers; a restart before then loses it."
)
"""Sentence that commands print for a response with `stored: false`."""


class ClientError(UserError):
    """Raised if a request cannot be sent, fails or is refused by the agent. The message states why and what to do."""


class RefusedError(ClientError):
    """Raised if the agent responds with an error status. `problem` is the JSON object of the response."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem['detail']} {problem['remedy']}")
        self.status = status
        self.problem = problem


class NoAgentError(ClientError):
    """Raised if no process listens on the agent's socket or port."""


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._limit = timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        # The kernel waits for a full listen queue only if the socket blocks, which Python's timeout prevents.
        self.sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(self._limit * 1e6), 10**6))
        )
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")  # a socket's path has at most 107 bytes
        finally:
            os.close(folder)
        self.sock.settimeout(self._limit)


class Answer(NamedTuple):
    """An HTTP response of the agent."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Client:
    """An HTTP client for this host's agent, through its unix socket, or for any agent by its URL.

    A token is sent only to a URL that the operator gave, because another program may listen on a port of this host.
    """

    address: Path | str
    """Path of the agent's unix socket, or URL of the agent, which may contain user and password."""
    token_file: Path | None = None
    """File with the token that is sent with requests to a URL."""
    timeout: float = TIMEOUT_SECONDS
    max_body: int = MAX_BODY

    def get(self, path: str, members: Collection[str], **query: object) -> Any:
        """Return the JSON object of a GET request. Parameters that are None are omitted. It must have `members`."""
        return self._ask("GET", path, members, query)

    def fetch(self, path: str) -> Answer:
        """Send a GET request and return the response, whatever its status. Raise ClientError if no response arrives."""
        try:
            return self._exchange("GET", path)
        except (OSError, http.client.HTTPException, _NotGpumonError) as error:
            what = f"no response from {self._shown_address} to GET {path.partition('?')[0]}: {error}"
            raise ClientError(f"{what}. Check the address, and that its server runs.") from error

    def change(self, method: str, path: str, members: Collection[str], **query: object) -> Any:
        """Send a request that changes the agent's state, as `get` does. A URL needs a token: else ClientError."""
        if not isinstance(self.address, Path) and self.token_file is None:
            raise ClientError(f"a change at {self._shown_address} needs a token: give its file with --token-file.")
        return self._ask(method, path, members, query)

    def _ask(self, method: str, path: str, members: Collection[str], query: Mapping[str, object]) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        path += f"?{urlencode(given, doseq=True)}" if given else ""
        try:
            status, _, body = self._exchange(method, path)
            return _document(status, body, members)
        except OSError as error:
            kind = NoAgentError if isinstance(error, (ConnectionRefusedError, FileNotFoundError)) else ClientError
            if isinstance(error, (ssl.SSLError, ConnectionResetError)) and str(self.address).startswith("https:"):
                raise ClientError(
                    f"no TLS connection with {self._shown_address} ({error}). Name the CA of its certificate in "
                    "SSL_CERT_FILE. If it requires a client certificate, run the command on its host: the unix socket "
                    "needs none."
                ) from error
            raise kind(
                f"no agent answers at {self._shown_address} ({error.strerror or error}). Start it (systemctl start "
                "gpumon), or name it with --socket or --url. `gpumon check` shows its last verdicts."
            ) from error
        except (http.client.HTTPException, _NotGpumonError) as error:
            what = str(error) if isinstance(error, _NotGpumonError) else type(error).__name__
            raise ClientError(
                f"the server at {self._shown_address} is not gpumon, or has another version ({method} {path}: "
                f"{what}). After an upgrade restart the agent."
            ) from error

    def _exchange(self, method: str, path: str) -> Answer:
        connection, authorization = self._connection()
        headers = {"User-Agent": AGENT} | ({"Authorization": authorization} if authorization else {})
        deadline, ended = None, threading.Event()
        try:
            connection.connect()
            # The timeout of the socket limits each read: a server that sends a byte a second would never end.
            deadline = threading.Timer(self.timeout, _end, (connection.sock, ended))
            deadline.daemon = True
            deadline.start()
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(self.max_body + 1)
            if ended.is_set() or (answer.length and len(body) <= self.max_body):
                raise http.client.IncompleteRead(body)
        except (OSError, http.client.HTTPException) as error:
            if ended.is_set():
                raise TimeoutError("timed out") from error
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
            connection.close()
        if len(body) > self.max_body or body.count(b",") > self.max_body // BYTES_PER_VALUE:
            raise _NotGpumonError(f"status {answer.status}, more than {self.max_body >> 20} MiB or too many values")
        return Answer(answer.status, answer.headers.get("Content-Type", ""), body)

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection, and the Authorization header: the token, else the URL's user and password, else ""."""
        if isinstance(self.address, Path):
            return _LocalConnection(self.address, self.timeout), ""
        url = urlsplit(self.address)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=self.timeout)
        try:
            if self.token_file is not None:
                return connection, f"Bearer {read(self.token_file)}"
        except TokenError as error:
            raise ClientError(str(error)) from error
        if url.username is None:
            return connection, ""
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        return connection, f"Basic {base64.b64encode(pair.encode()).decode()}"

    @property
    def _shown_address(self) -> str:
        scheme, slashes, rest = str(self.address).rpartition("//")
        return str(self.address) if isinstance(self.address, Path) else f"{scheme}{slashes}{rest.rpartition('@')[2]}"


class _NotGpumonError(Exception):
    """Raised if a response does not come from this version of gpumon. The message describes the response."""


def _end(connection: socket.socket, ended: threading.Event) -> None:
    """End a connection that another thread reads. `SSLSocket.shutdown` would also discard the state of TLS."""
    ended.set()
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _printable(value: Any) -> Any:
    """Return a JSON value with control characters replaced, because the sender of the response is not trusted."""
    if isinstance(value, dict):
        return {_printable(key): _printable(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_printable(member) for member in value]
    if isinstance(value, str) and not value.isprintable():
        return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in value)
    return value


def _document(status: int, body: bytes, members: Collection[str]) -> Any:
    """Return the JSON object of a response; raise _NotGpumonError if it is another one, RefusedError for a refusal."""
    try:
        document = _printable(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise _NotGpumonError(f"status {status}, no JSON") from error
    refused = status >= http.client.BAD_REQUEST
    lacking = set(PROBLEM if refused else members) - set(document if isinstance(document, dict) else ())
    if not isinstance(document, dict) or lacking:
        raise _NotGpumonError(f"status {status}, JSON without {', '.join(sorted(lacking)) or 'members'}")
    if refused:
        raise RefusedError(status, document)
    return document
