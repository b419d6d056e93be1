"""Read which pods have GPUs, from the kubelet's PodResources v1 (a unix socket, gRPC).

The kubelet creates a new socket when it restarts, so each call opens the path again.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gpumon.collectors import grpc_unix
from gpumon.collectors.host.reader import Turn
from gpumon.model.allocation import Claim, Owner, clipped

METHOD = "/v1.PodResourcesLister/List"
MAX_BYTES = 4 << 20
"""Maximum size of an answer."""
MAX_DEVICES = 4096
"""Maximum number of devices of an answer."""
TIMEOUT_SECONDS = 5.0
KEEP_SECONDS = 120.0
"""How long the last answer is valid."""
WAIT_SECONDS = 0.2
"""Maximum time for which a turn waits for an answer."""
_DRA_DRIVER = "gpu.nvidia.com"
_GPU = re.compile(r"GPU-|MIG-|nvidia[0-9]")

_POD = 1
"""Field numbers of v1.proto, also below."""
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINER = 1, 2, 3
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 1, 2, 5
_RESOURCE_NAME, _DEVICE_ID = 1, 2
_CLAIM_RESOURCE = 4
_DRIVER_NAME, _DEVICE_NAME = 2, 4

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
"""Wire types of protobuf."""


class PodResources:
    """The kubelet's PodResources at the path of its socket."""

    def __init__(self, path: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        self.path = path
        self._timeout = timeout

    def read(self) -> tuple[Claim, ...]:
        """Return a claim for each container that has GPUs.

        Raise OSError if there is no answer or an invalid one: FileNotFoundError if there is no kubelet, and one with
        ENODATA if no pod is listed, as by a kubelet that has just started.
        """
        self.path.stat()  # without a kubelet, the package h2 is not needed
        try:
            answer, message = grpc_unix.call(self.path, METHOD, b"", timeout=self._timeout, limit=MAX_BYTES)
        except ImportError as error:
            raise OSError(f"PodResources {error}") from error
        if reason := grpc_unix.failure(answer):
            raise OSError(f"PodResources failed: {reason[:200]!r}")
        try:
            pods = tuple(_values(message, _POD))
            claims = tuple(claim for pod in pods for claim in _claims(pod))
        except ValueError as error:
            raise OSError(f"the kubelet's answer is not valid PodResources v1: {error}") from error
        if not pods:
            raise OSError(errno.ENODATA, "the kubelet lists no pod")
        if sum(len(claim.devices) for claim in claims) > MAX_DEVICES:
            raise OSError(errno.E2BIG, f"the kubelet lists more than {MAX_DEVICES} GPUs")
        return claims


class PodReader:
    """Reads PodResources in a thread, at most once a turn, and keeps the last answer."""

    def __init__(self, source: PodResources, keep: float = KEEP_SECONDS, wait: float = WAIT_SECONDS) -> None:
        self._source = source
        self._keep = keep
        self._wait = wait
        self._call: _Call | None = None
        self._last: _Call | None = None
        self._error: OSError | None = None

    @property
    def silent(self) -> bool:
        """Whether there is a kubelet, and it did not answer when it was last asked, or has not yet."""
        return self._call is not None or not (self._error is None or isinstance(self._error, FileNotFoundError))

    def __call__(self, turn: Turn) -> tuple[Claim, ...] | None:
        """Return the claims of the last answer; None if it is older than `keep` seconds, or if there is none.

        Begin a call unless one is in progress. If it takes longer than `wait` seconds, a later turn takes the answer.
        Errors are noted in the turn, except that there is no kubelet.
        """
        self._take_answer(turn)
        try:
            self._call = self._call or _Call(self._source.read, turn.at)
        except RuntimeError as error:  # no thread can be started, as at a limit of a container's processes
            turn.errors.note(str(self._source.path), OSError(errno.EAGAIN, str(error)))
        else:
            self._call.join(self._wait)
        self._take_answer(turn)
        return self._last.claims if self._last is not None and turn.at - self._last.at <= self._keep else None

    def _take_answer(self, turn: Turn) -> None:
        call = self._call
        if call is None or call.is_alive():
            return
        self._call, self._error = None, call.error
        if call.error is not None:
            turn.errors.note(str(self._source.path), call.error)
        elif call.claims is not None:
            self._last = call


class _Call(threading.Thread):
    """One call, which begins at once, and its result when the thread has ended."""

    def __init__(self, read: Callable[[], tuple[Claim, ...]], at: float) -> None:
        super().__init__(name="pod-resources", daemon=True)
        self.at = at
        """Boot clock in seconds at which the call began."""
        self.claims: tuple[Claim, ...] | None = None
        self.error: OSError | None = None
        self._read = read
        self.start()

    def run(self) -> None:
        try:
            self.claims = self._read()
        except OSError as error:
            self.error = error


def _claims(pod: bytes) -> Iterator[Claim]:
    for container in _values(pod, _POD_CONTAINER):
        owner = Owner(
            pod_namespace=clipped(_text(pod, _POD_NAMESPACE)),
            pod_name=clipped(_text(pod, _POD_NAME)),
            container_name=clipped(_text(container, _CONTAINER_NAME)),
        )
        if devices := tuple(dict.fromkeys(filter(None, map(clipped, _devices(container))))):
            yield Claim(owner=owner, devices=devices)


def _devices(container: bytes) -> Iterator[str]:
    """Yield the GPUs of a container, of device plugins and of NVIDIA's DRA driver."""
    for devices in _values(container, _CONTAINER_DEVICES):
        named = "nvidia.com/" in _text(devices, _RESOURCE_NAME)
        for device in _values(devices, _DEVICE_ID):
            if named or _GPU.match(device.decode(errors="replace")):
                yield device.decode(errors="replace")
    for dynamic in _values(container, _CONTAINER_DYNAMIC):
        for claimed in _values(dynamic, _CLAIM_RESOURCE):
            if _text(claimed, _DRIVER_NAME) == _DRA_DRIVER:
                yield _text(claimed, _DEVICE_NAME)


def _text(message: bytes, number: int) -> str:
    """Return a text field, whose last value counts; "" if it is absent."""
    return [b"", *_values(message, number)][-1].decode(errors="replace")


def _values(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a field of texts or messages. Raise ValueError if the message is invalid."""
    at = depth = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, begin = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, begin = _varint(message, at)
            at = begin + size
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        elif kind in {_GROUP, _END_GROUP}:
            depth += 1 if kind == _GROUP else -1
        else:
            raise ValueError(f"wire type {kind}")
        if at > len(message) or depth < 0:
            raise ValueError("a field is truncated")
        if kind == _BYTES and tag >> 3 == number and not depth:
            yield message[begin:at]
    if depth:
        raise ValueError("a group is truncated")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the integer at this position and the position after it."""
    value = 0
    for shift, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("an integer is truncated")
