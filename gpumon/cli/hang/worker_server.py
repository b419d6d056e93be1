"""Asks the worker server of PyTorch in a rank for its flight recorder and a traceback, over its unix socket.

/proc/PID/net/unix lists the sockets of a network namespace. A socket is one of the process if its inode is in
/proc/PID/fd. Requests are HTTP/1.0, whose response ends with the connection: one deadline covers all of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path

from gpumon.cli.hang.dump import MAX_BYTES, safe_text
from gpumon.cli.hang.evidence import CodeLine, ReadError

THREAD = "pt_workerserver"
TIMEOUT_SECONDS = 2.0
MAX_SOCKETS = 16
"""Maximum number of listening sockets of a process that are asked."""
_MULTIPROCESSING = "/pymp-"
"""Part of the path of sockets of Python's multiprocessing, which a foreign request could disturb."""
_LISTENING = re.compile(r"^\S+ \S+ \S+ 00010000 0001 \S+ +(\d+) ([^@\n].*)", re.MULTILINE)
"""Matches the lines of listening stream sockets with a path, with their inode and path."""
_FRAME = re.compile(r'  File "(.{1,400})", line (\d{1,7}) in (.{1,200})')


def find_socket(pid: int) -> Path | None:
    """Return a path to the socket of the worker server, through the process's own mount namespace; None without.

    Raise OSError if the files of the process cannot be read.
    """
    process = Path(f"/proc/{pid}")
    if THREAD not in thread_names(pid):
        return None
    own = set()
    for file in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(file.readlink()))
    rows: list[tuple[str, str]] = _LISTENING.findall((process / "net/unix").read_text(errors="surrogateescape"))
    paths = [path for inode, path in rows if f"socket:[{inode}]" in own and _MULTIPROCESSING not in path]
    for path in paths[:MAX_SOCKETS]:
        place = process / "root" / path.lstrip("/") if path.startswith("/") else process / "cwd" / path
        with contextlib.suppress(ReadError):
            if b"fr_trace_json" in ask(place, "GET", ""):
                return place
    return None


def thread_names(pid: int) -> set[str]:
    """Return the names of the threads of a process; none if it has ended."""
    names = set()
    for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.add(comm.read_text(errors="replace").strip())
    return names


def ask(path: Path, method: str, handler: str, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Return the body of the response of a handler. Raise ReadError if it does not arrive whole in time."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has at most 107 bytes
            finally:
                os.close(folder)
            connection.sendall(f"{method} /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            head, _, body = read_to_end(connection, timeout).partition(b"\r\n\r\n")
    except OSError as error:
        raise ReadError(f"worker server: {error.strerror or error}") from error
    length = re.search(rb"\r\ncontent-length: *(\d{1,9})\r\n", head.lower() + b"\r\n")
    if not re.match(rb"HTTP/1\.\d 200 ", head) or (length and int(length[1]) != len(body)):
        raise ReadError(f"worker server: no complete response ({safe_text(head[:80].decode(errors='replace'))})")
    return body


def read_to_end(connection: socket.socket, timeout: float) -> bytes:
    """Return what the peer sends until it closes. Raise OSError if that takes too long or is larger than a dump."""
    deadline, content = time.monotonic() + timeout, bytearray()
    while len(content) <= MAX_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            return bytes(content)
        content += part
    raise OSError(f"more than {MAX_BYTES >> 20} MiB")


def main_stack(traceback: str) -> tuple[CodeLine, ...]:
    """Return the stack of the main thread, which a traceback of all threads lists last, innermost line first."""
    last = traceback.rpartition("hread 0x")[2]
    return tuple(CodeLine(safe_text(file), int(line), safe_text(name)) for file, line, name in _FRAME.findall(last))
