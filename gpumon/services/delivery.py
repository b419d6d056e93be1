"""Deliver one notification: `python -I -m gpumon.services.delivery`, a child process of DeliveryChild.

Its input is one line of JSON with the orders that a receiver (receivers.py) has made, and the process id of its parent.
Its output is one line of JSON: `error`, the reason if the message was not delivered, and `refused`, true if it must not
be sent again. What may hang, such as a name server, a proxy or a file of a secret, hangs in this process only. The
parent kills it at the deadline, so nothing here has a time limit of its own.
"""

from __future__ import annotations

import base64
import ctypes
import http.client
import io
import json
import logging
import os
import re
import signal
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpumon import __version__
from gpumon.collectors import grpc_unix

PR_SET_PDEATHSIG = 1
_REFUSED = frozenset({400, 413, 422})
"""HTTP statuses with which a receiver rejects the message itself, which is then not sent again. After other statuses,
such as 401, the message is sent again, because the operator can correct the cause.
"""
_MAX_ANSWER_BYTES = 65_536
_CALL_SECONDS = 3600.0
"""Longer than the deadline of the parent, which ends the call."""
_INVALID_ARGUMENT = "3"
"""The gRPC status with which a server rejects the message itself, which is then not sent again."""


class DeliveryError(Exception):
    """Raised if a message was not delivered. `refused`: it must not be sent again."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


def main() -> int:
    orders = json.loads(sys.stdin.buffer.readline())
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != orders.pop("parent"):  # the parent ended before prctl
        return 1
    sys.stdout.write(json.dumps(outcome(orders)) + "\n")
    sys.stdout.flush()
    return 0


def outcome(orders: Mapping[str, Any]) -> Mapping[str, Any]:
    """Deliver a message, and return the outcome as it is written to the output.

    `orders` has the `kind` of the message (a key of _KINDS), and the arguments of that function.
    """
    arguments = dict(orders)
    try:
        _KINDS[arguments.pop("kind")](**arguments)
    except DeliveryError as error:
        return {"error": str(error), "refused": error.refused}
    except Exception as error:  # noqa: BLE001 - the text of an error that was not foreseen may contain a secret
        place = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__} in {place.filename}:{place.lineno}", "refused": False}
    return {"error": None, "refused": False}


def read_secret(value: str | None, file: str | None) -> str:
    """Return a URL or token: the value, or the content of the file; "" if neither is configured.

    Raise DeliveryError if the file is empty or unreadable.
    """
    if file is None:
        return value or ""
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DeliveryError(f"{file} cannot be read: {error}") from error
    if not secret:
        raise DeliveryError(f"{file} is empty")
    return secret


def _post(url: Mapping[str, Any], token: Mapping[str, Any], body: object, content_type: str) -> None:
    post(read_secret(**url), body, read_secret(**token), content_type)


def post(url: str, body: object, token: str = "", content_type: str = "application/json") -> None:
    """Send `body` as JSON by HTTP POST. Raise DeliveryError unless the response has a status of 200 to 299.

    `token`: bearer token; empty for none.
    """
    authorization = {"Authorization": f"Bearer {token}"} if token else {}
    headers = {"Content-Type": content_type, "User-Agent": f"gpumon/{__version__}", **authorization}
    if not re.match(r"https?://[^/?#@]*(?![^/?#])", url):
        raise DeliveryError("the URL does not begin with http:// or https://, or has a user: use a token file for that")
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - checked
        _OPENER.open(request).close()
    except urllib.error.HTTPError as error:
        error.close()
        words = f"the answer was {error.code} {error.reason}"[:300]
        raise DeliveryError(words, refused=error.code in _REFUSED) from error
    except (ValueError, http.client.InvalidURL) as error:  # the text of these errors contains a secret URL or token
        raise DeliveryError("the URL or the token has characters that HTTP does not allow: correct it") from error
    except http.client.HTTPException as error:
        raise DeliveryError(f"the answer is not valid HTTP ({type(error).__name__})") from error
    except OSError as error:
        cause = getattr(error, "reason", error)  # URLError contains the error of the connection
        raise DeliveryError(getattr(cause, "strerror", None) or str(cause)) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: their target would get the token, and a GET request that lacks the alert."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _notify(url: Mapping[str, Any], title: str, body: str, notify_type: str) -> None:
    """Send a message to the service that an Apprise URL names."""
    secret = read_secret(**url)
    try:
        import apprise  # noqa: PLC0415 - an optional dependency, which takes 20 MB of memory
    except ImportError as error:
        remedy = "install gpumon[notifications], or the package apprise beside gpumon"
        raise DeliveryError(f"apprise_urls needs a package that is missing ({error}): {remedy}") from error
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.WARNING, format="%(message)s", force=True)
    service = apprise.Apprise()
    if not service.add(secret):
        wrong = _without_secrets(log.getvalue(), secret) or "the scheme is unknown"
        raise DeliveryError(f"Apprise does not accept the URL ({wrong}): see https://appriseit.com/services/")
    if not service.notify(title=title, body=body, notify_type=notify_type, body_format=apprise.NotifyFormat.TEXT):
        raise DeliveryError(_without_secrets(log.getvalue(), secret) or "Apprise gave no reason")


def _without_secrets(text: str, url: str) -> str:
    """Return the last line of a text without the URL and without its parts, each of which may be a secret."""
    parts = {part for part in re.split(r"[/?&=@:,;#]+", f"{url} {unquote(url)}".partition("://")[2]) if len(part) > 2}
    for secret in (url, *sorted(parts, key=len, reverse=True)):
        text = text.replace(secret, "<redacted>")
    return " ".join(text.strip().rpartition("\n")[2].split())[:300]


def _call(path: str, method: str, message: str) -> None:
    """Call a method of a gRPC server on a unix socket with an encoded message (base64)."""
    try:
        answer, _ = grpc_unix.call(
            Path(path), method, base64.b64decode(message), timeout=_CALL_SECONDS, limit=_MAX_ANSWER_BYTES
        )
    except ImportError as error:
        raise DeliveryError(f"NVSentinel {error}") from error
    except OSError as error:
        raise DeliveryError(f"{path}: {error}") from error
    if reason := grpc_unix.failure(answer):
        raise DeliveryError(f"{path}: {reason}", refused=answer.get("grpc-status") == _INVALID_ARGUMENT)


_KINDS: Mapping[str, Callable[..., None]] = {"http": _post, "apprise": _notify, "grpc": _call}

if __name__ == "__main__":
    sys.exit(main())
