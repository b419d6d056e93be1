"""What is checked before every route: Host, Origin, headers for browsers."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from each_case import each_case
from serving import BEARER, ServedNode, ask, is_problem, serving

from gpumon.server.guard import ANY, host_of, is_allowed, is_loopback, own_names
from gpumon.server.token import TokenError, ensure, read, warning

NAMES = frozenset({"localhost", "gpu-17"})


@each_case(
    "host",
    ["localhost", "localhost:17400", "GPU-17:17400", "gpu-17.", "127.0.0.1", "10.1.2.3:1", "[::1]:17400", "[::1]"],
)
def test_own_names_and_addresses_are_allowed(port: int, host: str) -> None:
    """An IP address is always allowed, because it cannot be rebound."""
    assert ask(port, "/metrics", headers={"Host": host}).status == 200


@each_case("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "gpu-18", "", "x y"])
def test_other_names_are_refused(port: int, host: str) -> None:
    """A page of another site that rebinds its name to this address reads nothing."""
    answer = ask(port, "/metrics", headers={"Host": host})
    assert is_problem(answer, 421)
    assert "web.allowed_hosts" in answer.document["remedy"]


def test_an_agent_that_others_can_reach_answers_reads_under_any_name() -> None:
    """Prometheus may know it by a name that it does not know itself. A change still needs a known name."""
    node = ServedNode(hosts_to_read=frozenset({ANY}))
    with serving(node) as port:
        headers = BEARER | {"Host": "gpu-17.cluster.example:17400"}
        assert ask(port, "/metrics", headers=headers).status == 200
        assert is_problem(ask(port, "/probe/allreduce", "POST", headers), 421)
    hosts = ("127.0.0.1", "::1", "localhost", "", "0.0.0.0", "::", "10.0.0.17")
    assert [is_loopback(host) for host in hosts] == [True, True, True, False, False, False, False]


def test_any_host_can_be_allowed() -> None:
    """For names that cannot be listed, for example behind a proxy."""
    assert is_allowed("whatever.example", frozenset({"*"}))
    assert not is_allowed("whatever.example", NAMES)


def test_port_and_brackets_are_no_part_of_the_host() -> None:
    """They are written as browsers and Prometheus send them."""
    assert [host_of(each) for each in ("a:1", "[::1]:2", "[::1]", "A.", "a")] == ["a", "::1", "::1", "a", "a"]


def test_long_names_are_found_without_dns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From /etc/hosts and the search domains: a dead resolver does not delay the start."""
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-17")
    (tmp_path / "hosts").write_text(
        "127.0.0.1 localhost\n10.0.0.17 gpu-17.rack.example gpu-17 # me\n10.0.0.18 gpu-18\n"
    )
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.1\nsearch cluster.example. .\n")
    names = own_names("10.0.0.17", tmp_path)
    assert {"localhost", "gpu-17", "gpu-17.rack.example", "gpu-17.cluster.example", "10.0.0.17"} <= names
    assert "gpu-18" not in names
    assert "gpu-17" in own_names("", tmp_path / "nothing here")


@each_case("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://[", ""])
def test_page_of_another_origin_changes_nothing(node: ServedNode, port: int, origin: str) -> None:
    """Even with the token."""
    answer = ask(port, "/probe/allreduce", "POST", BEARER | {"Origin": origin})
    assert is_problem(answer, 403)
    assert not node.requests


def test_page_without_a_host_is_no_page_of_this_agent(node: ServedNode, port: int) -> None:
    """HTTP/1.0 needs no Host header, and an origin is not compared with one that is not there."""
    request = (
        f"POST /probe/allreduce HTTP/1.0\r\nOrigin: http://None\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request.encode())
        assert connection.makefile("rb").readline().split()[1] == b"403"
    assert not node.requests


def test_own_page_may_change_something(node: ServedNode, port: int) -> None:
    """Its origin is the host that was asked."""
    answer = ask(port, "/probe/allreduce", "POST", BEARER | {"Origin": f"http://127.0.0.1:{port}"})
    assert (answer.status, node.requests) == (202, ["allreduce"])


@each_case("path", ["/", "/docs", "/metrics", "/api/v1/node", "/nope", "/static/gpumon.js"])
def test_responses_have_security_headers(port: int, path: str) -> None:
    headers = ask(port, path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Access-Control-Allow-Origin"] is None


def test_preflight_is_refused(port: int) -> None:
    """There is no CORS: a browser that asks first hears no."""
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = ask(port, "/probe/allreduce", "OPTIONS", headers)
    assert is_problem(answer, 405)
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert answer.headers["Allow"] == "GET, HEAD, POST"


def test_first_start_creates_the_file(tmp_path: Path) -> None:
    """Long, random, for owner and group only whatever the umask, in a new directory."""
    path = tmp_path / "state" / "token"
    before = os.umask(0)
    try:
        token = ensure(path)
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert read(path) == token == ensure(path)
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_two_agents_create_one_token(tmp_path: Path) -> None:
    """The file is written at once and never overwritten."""
    path = tmp_path / "token"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(ensure, [path] * 32))
    assert tokens == {read(path)}


@each_case("content", [b"", b"\n", b"short\n", b"two words of a token\n", b"caf\xc3\xa9-caf\xc3\xa9-caf\xc3\xa9"])
def test_unusable_token_is_an_error(tmp_path: Path, content: bytes) -> None:
    """An empty token would disable authentication."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=r"Delete it and restart") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match=r"there is no token file .*--web\.token-file"):
        read(tmp_path / "token")


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """A directory in its place, and a file in place of its directory."""
    with pytest.raises(TokenError, match=r"is not a regular file"):
        read(tmp_path)
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(TokenError, match=r"cannot read the token file .*symbolic links"):
        read(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TokenError, match=r"is not a regular file"):
        read(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(TokenError, match=r"cannot create the token file"):
        ensure(tmp_path / "file" / "token")


def test_world_readable_token_is_a_warning(tmp_path: Path) -> None:
    """The warning has the command that fixes it."""
    path = tmp_path / "token"
    ensure(path)
    assert warning(path) is None
    path.chmod(0o644)
    assert f"chmod 0640 {path}" in (warning(path) or "")
    path.chmod(0o642)
    assert "can read or write" in (warning(path) or "")
