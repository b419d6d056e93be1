"""Asks the RAS service of NCCL in a job for its state, once and only if the operator requests it.

A query can crash the job: KNOWN_CRASHES lists the versions. Equal counts are no proof of health, and unequal counts are
normal while the job moves, so only ranks that did not answer RAS are reported, as facts and not as suspects.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

from gpumon.cli.hang.dump import safe_text
from gpumon.cli.hang.worker_server import read_to_end

ADDRESS = "localhost:28028"
TIMEOUT_SECONDS = 30.0
MAX_LINES = 40
KNOWN_CRASHES = (
    ((2, 24), (2, 26, 5), "a query during initialization crashes the job (NVIDIA/nccl#1669, #1718)"),
    ((2, 24), (2, 29, 1), "a query with missing ranks can crash the job (NVIDIA/nccl#1762)"),
    ((2, 27, 3), (2, 30, 7), "a query while communicators come and go can crash the job (NVIDIA/nccl#2346)"),
    ((2, 27, 7), (2, 27, 7), "RAS itself can crash the job, without a query (NVIDIA/nccl#1996)"),
)
"""First and last affected version of NCCL, and the crash. Later versions than the last one were not examined."""
_REPAIR = re.compile(r'("nvml_dev":\s*-?\d+)(\s*")')
"""Matches the place where NCCL 2.28.9 omits a comma after a missing rank's device."""
_MISSING = re.compile(r"^ *(Process \d+ on node .*|The missing ranks?: .*|Rank \d+ -- .*)$", re.MULTILINE)


def address(text: str) -> str:
    """Return a text such as localhost:28028. Raise ArgumentTypeError if it is no address."""
    if re.fullmatch(r".+:\d{1,5}", text):
        return text
    example = f"such as {ADDRESS}. JOB comes before it: gpumon explain 4711 --ras"
    raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, {example}")


def query(address: str) -> tuple[str, ...]:
    """Return the lines to show about the state that RAS reports, or why it reports none."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS) as connection:
            # An older version responds to SET FORMAT with an error line, and to STATUS with text.
            connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 10\nSET FORMAT json\nVERBOSE STATUS\n")
            answer = read_to_end(connection, TIMEOUT_SECONDS).decode(errors="replace")
        return tuple(dict.fromkeys(parse(answer)))[:MAX_LINES]
    except OSError as error:
        return (f"no answer from {address}: {error}",)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return (f"the answer from {address} is not valid: {safe_text(str(error))}",)


def parse(answer: str) -> Iterator[str]:
    """Yield the lines to show about an answer, JSON or text: the version, its known crashes, and silent ranks."""
    start = answer.find("{")
    if start < 0:
        version = re.search(r"NCCL version (\d+(?:\.\d+)*)", answer)
        yield from _version(version[1] if version else "")
        yield from (safe_text(line.strip()) for line in _MISSING.findall(answer))
        return
    document = json.loads(_REPAIR.sub(r"\1,\2", answer[start:]))
    yield from _version(safe_text(document.get("nccl_version", "")))
    seen = {(safe_text(each["hash"]), str(each.get("secondary_hash"))): each for each in document["communicators"]}
    for each in seen.values():
        yield from _communicator(each)


def _version(text: str) -> Iterator[str]:
    yield f"NCCL {text or 'of unknown version'}"
    version = tuple(int(part) for part in re.findall(r"\d{1,4}", text))
    for first, last, crash in KNOWN_CRASHES:
        if version and first <= version[:3] <= last:
            yield f"known trouble of this version: {crash}"


def _communicator(each: Any) -> Iterator[str]:
    name = f"communicator {safe_text(str(each['hash']))} of {int(each['size'])} ranks"
    missing = each.get("missing_ranks") or ()
    for rank in missing:
        dead = rank.get("status", {}).get("considered_dead")
        place = f"process {int(rank['pid'])} on {safe_text(str(rank['host']))}"
        yield f"{name}: rank {int(rank['rank'])} ({place}) {'is considered dead' if dead else 'does not respond'}"
    counts = {json.dumps(rank.get("collective_counts"), sort_keys=True) for rank in each.get("ranks") or ()}
    if not missing:
        yield f"{name}: all ranks respond, collective counts {'differ' if len(counts) > 1 else 'are equal'}"
