"""Masks the identifying data of a recording: uuids, serial numbers, GUIDs, board ids and process ids.

Equal values have equal masks of the same form, so that a replayed library can still look up a GPU by uuid. TEXTS,
NUMBERS, BYTES and PROCESSES list the functions that return identifying data. Bus ids, models and versions are not
masked, because a recording is useless without them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

TEXTS = frozenset({"nvmlDeviceGetSerial"})
"""Functions whose text is masked character by character. In all other texts, only uuids are masked."""
NUMBERS = frozenset({"nvmlDeviceGetBoardId"})
BYTES: Mapping[str, Sequence[slice]] = {
    "nvmlDeviceGetPlatformInfo": (slice(0, 16), slice(16, 32)),  # GUID of the port, serial of the chassis or rack
    "nvmlDeviceGetGpuFabricInfoV": (slice(0, 16),),  # uuid of the cluster
    "nvmlDeviceGetGpuFabricInfo": (slice(0, 16),),
}
"""Byte ranges to mask in the struct that a function returns, counted from the end of the version, if there is one."""
PROCESSES = re.compile(r"nvmlDeviceGet\w*Processes\w*|nvmlDeviceGetProcess\w*|nvmlDeviceGetAccountingPids")
"""Pattern of the functions that return a list of entries, each of which begins with a process id."""
FIRST_PID = 1 << 22
"""First masked process id. Masked ids are above the maximum process id of Linux, so no process has such an id."""


class Mask:
    """Masks identifying data with a hash that has `secret` as its key. If `secret` is None, nothing is masked."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret

    def inputs(self, inputs: Any) -> Any:
        """Return the inputs of a call, or any other JSON value, with all uuids in it masked."""
        return self._mask_value(inputs)

    def outputs(self, function: str, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the outputs of a call of `function`, with the identifying data in them masked."""
        if self._secret is None:
            return tuple(outputs)
        return tuple(self._output(function, value) for value in outputs)

    def _output(self, function: str, value: Any) -> Any:
        if function in TEXTS and isinstance(value, str):
            return self._characters(value)
        if function in NUMBERS and isinstance(value, int):
            return self._number(value)
        if function in BYTES and isinstance(value, str):
            return self._bytes(bytes.fromhex(value), BYTES[function]).hex()
        if PROCESSES.fullmatch(function) and isinstance(value, (list, tuple)):
            return tuple(self._process(bytes.fromhex(entry)).hex() for entry in value)
        return self._mask_value(value)

    def _mask_value(self, value: Any) -> Any:
        if self._secret is None:
            return value
        if isinstance(value, str):
            return _UUID.sub(lambda match: self._uuid(match[0]), value)
        if isinstance(value, dict):
            return {self._mask_value(key): self._mask_value(item) for key, item in value.items()}
        return tuple(self._mask_value(item) for item in value) if isinstance(value, (list, tuple)) else value

    def _digest(self, value: bytes) -> bytes:
        return hmac.digest(self._secret or b"", value, "sha256")

    def _uuid(self, uuid: str) -> str:
        return str(UUID(bytes=self._digest(uuid.lower().encode())[:16]))

    def _characters(self, text: str) -> str:
        """Return the text with each digit replaced by a digit and each letter by a letter.

        "N/A" and texts of zeros are not changed, because they mean that there is no value.
        """
        if text == "N/A" or all(character == "0" for character in text if character.isalnum()):
            return text
        digest = self._digest(text.encode())
        return "".join(_random_character(character, digest[n % len(digest)]) for n, character in enumerate(text))

    def _number(self, number: int) -> int:
        return int.from_bytes(self._digest(str(number).encode())[:4], "little")

    def _bytes(self, struct: bytes, secret: Sequence[slice]) -> bytes:
        masked = bytearray(struct)
        for part in secret:
            masked[part] = self._part(struct[part])
        return bytes(masked)

    def _part(self, part: bytes) -> bytes:
        """Return a masked byte range of a struct, of the same length.

        If the range is printable text, padded with NUL, mask the characters; otherwise replace all bytes.
        """
        text = part.rstrip(b"\0")
        if text.isascii() and text.decode("ascii").isprintable():
            return self._characters(text.decode()).encode().ljust(len(part), b"\0")
        return self._digest(part)[: len(part)]

    def _process(self, entry: bytes) -> bytes:
        pid = int.from_bytes(entry[:4], "little")
        masked = FIRST_PID + int.from_bytes(self._digest(str(pid).encode())[:4], "little") % FIRST_PID
        return masked.to_bytes(4, "little") + entry[4:]


def _random_character(character: str, chance: int) -> str:
    if character.isdigit():
        return str(chance % 10)
    if character.isalpha():
        return chr(ord("A" if character.isupper() else "a") + chance % 26)
    return character
