"""Masks identifying data. Equal values remain equal and keep their form, so that lookups still work.

TABLE: the places of such data. Bus ids, models and versions are not masked, because a recording is useless without
them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

TEXTS = frozenset({"nvmlDeviceGetSerial"})
"""Functions whose texts are masked letter by letter. Uuids are masked in every text."""
NUMBERS = frozenset({"nvmlDeviceGetBoardId"})
BYTES: Mapping[str, Sequence[slice]] = {
    "nvmlDeviceGetPlatformInfo": (slice(0, 16), slice(16, 32)),  # GUID of the port, serial of the chassis or rack
    "nvmlDeviceGetGpuFabricInfoV": (slice(0, 16),),  # uuid of the cluster
    "nvmlDeviceGetGpuFabricInfo": (slice(0, 16),),
}
"""Masked bytes of a function's struct, after the version."""
PROCESSES = re.compile(r"nvmlDeviceGet\w*Processes\w*|nvmlDeviceGetProcess\w*|nvmlDeviceGetAccountingPids")
"""Functions whose lists begin each entry with a process id."""
FIRST_PID = 1 << 22
"""First masked process id. It is above the maximum of Linux, so it is never the id of a process."""


class Mask:
    """A mask derived from a secret. Without a secret nothing is masked."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret

    def inputs(self, inputs: Any) -> Any:
        """Mask the inputs of a call, or anything else that may hold uuids."""
        return self._anywhere(inputs)

    def outputs(self, function: str, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Mask the output of a function."""
        if self._secret is None:
            return tuple(outputs)
        return tuple(self._one(function, value) for value in outputs)

    def _one(self, function: str, value: Any) -> Any:
        if function in TEXTS and isinstance(value, str):
            return self._characters(value)
        if function in NUMBERS and isinstance(value, int):
            return self._number(value)
        if function in BYTES and isinstance(value, str):
            return self._bytes(bytes.fromhex(value), BYTES[function]).hex()
        if PROCESSES.fullmatch(function) and isinstance(value, (list, tuple)):
            return tuple(self._process(bytes.fromhex(entry)).hex() for entry in value)
        return self._anywhere(value)

    def _anywhere(self, value: Any) -> Any:
        if self._secret is None:
            return value
        if isinstance(value, str):
            return _UUID.sub(lambda found: self._uuid(found[0]), value)
        if isinstance(value, dict):
            return {self._anywhere(key): self._anywhere(one) for key, one in value.items()}
        return tuple(self._anywhere(one) for one in value) if isinstance(value, (list, tuple)) else value

    def _digest(self, value: bytes) -> bytes:
        return hmac.digest(self._secret or b"", value, "sha256")

    def _uuid(self, uuid: str) -> str:
        hexadecimal = self._digest(uuid.lower().encode()).hex()
        return "-".join(
            (hexadecimal[:8], hexadecimal[8:12], hexadecimal[12:16], hexadecimal[16:20], hexadecimal[20:32])
        )

    def _characters(self, text: str) -> str:
        """Replace each digit by a digit and each letter by a letter. "0" and "N/A" mean "none" and are not replaced."""
        if text == "N/A" or all(one == "0" for one in text if one.isalnum()):
            return text
        digest = self._digest(text.encode())
        return "".join(_alike(one, digest[n % len(digest)]) for n, one in enumerate(text))

    def _number(self, number: int) -> int:
        return int.from_bytes(self._digest(str(number).encode())[:4], "little")

    def _bytes(self, struct: bytes, secret: Sequence[slice]) -> bytes:
        masked = bytearray(struct)
        for part in secret:
            masked[part] = self._part(struct[part])
        return bytes(masked)

    def _part(self, part: bytes) -> bytes:
        """Return the masked text; None for None."""
        text = part.rstrip(b"\0")
        if text.isascii() and text.decode("ascii").isprintable():
            return self._characters(text.decode()).encode().ljust(len(part), b"\0")
        return self._digest(part)[: len(part)]

    def _process(self, entry: bytes) -> bytes:
        pid = int.from_bytes(entry[:4], "little")
        masked = FIRST_PID + int.from_bytes(self._digest(str(pid).encode())[:4], "little") % FIRST_PID
        return masked.to_bytes(4, "little") + entry[4:]


def _alike(one: str, chance: int) -> str:
    if one.isdigit():
        return str(chance % 10)
    if one.isalpha():
        return chr(ord("A" if one.isupper() else "a") + chance % 26)
    return one
