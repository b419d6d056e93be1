"""TLS, client certificates, users and tokens for reading, as --web.config.file and web.read_token_file set them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import logging
import os
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml
from agents import eventually, free_port
from certificates import Authority
from each_case import each_case
from servers import prometheus, query, write_yaml
from serving import RawResponse, ServedNode, ask, no_descriptor_left, serving

from gpumon.cli.client import Client, ClientError
from gpumon.server.access import MAX_WAITING_OF_CLIENT, Passwords, TooManyPasswordsError
from gpumon.server.listener import MAX_HANDSHAKES, listen_locally
from gpumon.server.web_config import WebConfigError, read, tls_context

HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that has signed a server and a client."""
    made = Authority.create(tmp_path_factory.mktemp("tls") / "ca")
    made.sign("server", "IP:127.0.0.1")
    made.sign("client", "DNS:prometheus.example.com")
    return made


def written(folder: Path, **parts: Any) -> Path:
    """Write a web configuration that promtool accepts, and return its path."""
    path = folder / "web.yml"
    path.write_text(yaml.safe_dump(parts))
    if "client_allowed_sans" in path.read_text():  # Debian's promtool is older
        return path
    subprocess.run(["promtool", "check", "web-config", str(path)], check=True, capture_output=True, timeout=60)
    return path


def tls_part(authority: Authority, **more: Any) -> dict[str, Any]:
    return {"cert_file": f"{authority.folder}/server.crt", "key_file": f"{authority.folder}/server.key", **more}


def ask_tls(
    port: int, path: str, authority: Authority, *, client: str | None = None, headers: Mapping[str, str] | None = None
) -> RawResponse:
    """Send a GET request over TLS."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(authority.folder / f"{client}.crt", authority.folder / f"{client}.key")
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        return RawResponse(response.status, response.headers, response.read())
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def test_the_agent_answers_over_tls(authority: Authority, tmp_path: Path) -> None:
    """With the configured headers, and no longer without TLS."""
    headers = {"Strict-Transport-Security": "max-age=600"}
    path = written(tmp_path, tls_server_config=tls_part(authority), http_server_config={"headers": headers})
    with serving(ServedNode(web_config=path)) as port:
        answer = ask_tls(port, "/metrics", authority)
        assert (answer.status, answer.headers["Strict-Transport-Security"]) == (200, "max-age=600")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port, "/metrics")


def test_a_client_needs_a_certificate_with_an_allowed_name(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a certificate there is no connection, as a command reports; with another name there is no answer."""
    tls = tls_part(
        authority,
        client_auth_type="RequireAndVerifyClientCert",
        client_ca_file=str(authority.certificate),
        client_allowed_sans=["prometheus.example.com"],
    )
    with serving(ServedNode(web_config=written(tmp_path, tls_server_config=tls))) as port:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask_tls(port, "/metrics", authority)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        with pytest.raises(ClientError, match="client certificate, run the command on its host"):
            Client(f"https://127.0.0.1:{port}").get("/api/v1/health", ["verdicts"])
        assert ask_tls(port, "/metrics", authority, client="server").status == 403
        assert ask_tls(port, "/metrics", authority, client="client").status == 200


def test_a_renewed_certificate_is_used_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    """While only one of its two files is replaced, the old one stays, with a notice."""
    renewed = Authority.create(tmp_path / "new")
    renewed.sign("server", "IP:127.0.0.1")
    for suffix in ("crt", "key"):
        (tmp_path / f"tls.{suffix}").write_bytes((authority.folder / f"server.{suffix}").read_bytes())
    node = ServedNode(web_config=written(tmp_path, tls_server_config={"cert_file": "tls.crt", "key_file": "tls.key"}))
    with serving(node) as port:
        assert ask_tls(port, "/metrics", authority).status == 200
        (tmp_path / "tls.crt").write_bytes((renewed.folder / "server.crt").read_bytes())
        assert "tls.crt" in eventually(lambda: node.access.notice)
        assert ask_tls(port, "/metrics", authority).status == 200
        (tmp_path / "tls.key").write_bytes((renewed.folder / "server.key").read_bytes())
        eventually(lambda: node.access.notice is None)
        assert eventually(lambda: answers(port, renewed)) == 200
        with pytest.raises(ssl.SSLError):
            ask_tls(port, "/metrics", authority)


def test_a_certificate_is_renewed_later_if_no_descriptor_is_left(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server logs once that it cannot listen, and serves with the certificate of before until it can."""
    caplog.set_level(logging.INFO)
    renewed = Authority.create(tmp_path / "new")
    renewed.sign("server", "IP:127.0.0.1")
    for suffix in ("crt", "key"):
        (tmp_path / f"tls.{suffix}").write_bytes((authority.folder / f"server.{suffix}").read_bytes())
    node = ServedNode(web_config=written(tmp_path, tls_server_config={"cert_file": "tls.crt", "key_file": "tls.key"}))
    context = ssl.create_default_context(cafile=str(authority.certificate))

    def logged(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    with (
        listen_locally(tmp_path / "socket") as local,
        serving(node, local) as port,
        socket.socket() as client,
        contextlib.ExitStack() as stack,
    ):
        spare = os.dup(0)
        client.settimeout(60)
        stack.enter_context(no_descriptor_left())
        os.close(spare)  # enough to read the files, and not to listen on two sockets
        for suffix in ("crt", "key"):
            (renewed.folder / f"server.{suffix}").rename(tmp_path / f"tls.{suffix}")
        assert eventually(lambda: logged("use the previous TLS settings"))
        client.connect(("127.0.0.1", port))
        connection = http.client.HTTPSConnection("127.0.0.1", port)
        connection.sock = context.wrap_socket(client, server_hostname="127.0.0.1")
        dates = set[str]()
        while len(dates) < 4:  # the server sets the date whenever it tries to listen
            connection.request("GET", "/-/healthy")
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
            dates.add(str(response.headers["Date"]))
        connection.close()
        stack.close()
        assert eventually(lambda: answers(port, renewed)) == 200
    assert (logged("use the previous TLS settings"), logged("use the current TLS settings")) == (1, 1)


def test_a_certificate_that_is_written_after_its_configuration_is_used(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the error is logged once, although the files are read again each time."""
    path = written(tmp_path, tls_server_config=tls_part(authority))
    access = ServedNode(web_config=path).access
    path.write_text("tls_server_config: {cert_file: new.crt, key_file: new.key}")
    assert [access.refresh() for _ in range(3)] == [False] * 3
    assert [record.levelname for record in caplog.records if record.name == "gpumon.server"] == ["ERROR"]
    for suffix in ("crt", "key"):
        (tmp_path / f"new.{suffix}").write_bytes((authority.folder / f"server.{suffix}").read_bytes())
    assert [access.refresh(), access.refresh(), access.notice] == [True, False, None]


def answers(port: int, authority: Authority) -> int | None:
    """Return the status of an answer over TLS; None if the server has another certificate."""
    try:
        return ask_tls(port, "/metrics", authority).status
    except ssl.SSLError:
        return None


def test_an_emptied_configuration_does_not_end_the_protection(tmp_path: Path) -> None:
    """An editor that truncates the file before it writes does not open the agent; `{}` does."""
    path = written(tmp_path, basic_auth_users={"prometheus": HASH})
    access = ServedNode(web_config=path).access
    path.write_text("")
    assert (access.refresh(), list(access.config.basic_auth_users)) == (False, ["prometheus"])
    assert "is empty" in str(access.notice)
    path.write_text("{}\n")
    assert (access.refresh(), access.config.basic_auth_users, access.notice) == (True, {}, None)


def test_unfinished_handshakes_are_limited(authority: Authority, tmp_path: Path) -> None:
    """The oldest one ends for a new one, and a client that finishes its handshake is answered."""
    node = ServedNode(web_config=written(tmp_path, tls_server_config=tls_part(authority)))
    with serving(node) as port, contextlib.ExitStack() as clients:
        first, *_ = (
            clients.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_HANDSHAKES + 1)
        )
        first.settimeout(5)
        assert first.recv(1) == b""
        assert ask_tls(port, "/metrics", authority).status == 200


@each_case("authorization", ["Basic \u00e9", "Bearer \u00e9", "Basic /w==", "Basic", "\u00e9"])
def test_an_authorization_that_is_not_text_is_refused(authorization: str, tmp_path: Path) -> None:
    """With 401, and not with an error of the server and its traceback in the log."""
    with serving(ServedNode(web_config=written(tmp_path, basic_auth_users={"prometheus": HASH}))) as port:
        assert ask(port, "/metrics", headers={"Authorization": authorization}).status == 401


def test_users_read_with_their_password(tmp_path: Path) -> None:
    """Also the second time, when the password is not hashed again. Everyone may ask whether the agent lives."""
    node = ServedNode(web_config=written(tmp_path, basic_auth_users={"prometheus": HASH}))
    with serving(node) as port:
        refused = ask(port, "/metrics")
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Basic realm="gpumon"')
        assert [ask(port, "/metrics", headers=basic("prometheus", "open sesame")).status for _ in range(2)] == [
            200,
            200,
        ]
        assert ask(port, "/-/healthy").status == 200
        for user, password in (("prometheus", "wrong"), ("other", "open sesame"), ("prometheus", "")):
            assert ask(port, "/metrics", headers=basic(user, password)).status == 401
        assert ask(port, "/metrics", headers={"Authorization": "Basic %%%"}).status == 401
        assert node.refusals.counts["credentials"] == 4


def test_a_flood_of_wrong_passwords_locks_out_its_client_only() -> None:
    """Passwords beyond the limit are refused; a user at another address, who is not remembered yet, is verified."""

    async def flood() -> tuple[list[bool | BaseException], bool]:
        passwords, users = Passwords(), {"prometheus": HASH}
        wrong = [passwords.verify("prometheus", str(number), users, "10.0.0.66") for number in range(50)]
        right = passwords.verify("prometheus", "open sesame", users, "10.0.0.1")
        *refused, accepted = await asyncio.gather(*wrong, right, return_exceptions=True)
        return refused, accepted is True

    refused, accepted = asyncio.run(flood())
    assert accepted
    assert [type(each) for each in refused].count(TooManyPasswordsError) == 50 - MAX_WAITING_OF_CLIENT
    assert refused.count(False) == MAX_WAITING_OF_CLIENT


def test_a_user_who_does_not_exist_costs_one_hash_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the response time does not reveal which users exist. Another user's password does not help."""
    costs: list[bytes] = []
    original = bcrypt.checkpw

    def record(password: bytes, hashed: bytes) -> bool:
        costs.append(hashed[:7])
        return original(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", record)
    for user in ("prometheus", "nobody"):
        assert not asyncio.run(Passwords().verify(user, "wrong", {"prometheus": HASH}, "10.0.0.1"))
    assert costs == [b"$2b$04$"] * 2
    assert not asyncio.run(Passwords().verify("nobody", "open sesame", {"prometheus": HASH}, "10.0.0.1"))
    assert not asyncio.run(Passwords().verify("nobody", "open sesame", {}, "10.0.0.1"))


def test_a_removed_user_is_refused_without_a_restart(tmp_path: Path) -> None:
    """The password that was right before is not remembered."""
    node = ServedNode(web_config=written(tmp_path, basic_auth_users={"prometheus": HASH, "other": HASH}))
    with serving(node) as port:
        assert ask(port, "/metrics", headers=basic("prometheus", "open sesame")).status == 200
        written(tmp_path, basic_auth_users={"other": HASH})
        eventually(lambda: ask(port, "/metrics", headers=basic("prometheus", "open sesame")).status == 401)


def test_a_user_may_read_and_not_change(tmp_path: Path) -> None:
    """A change needs the token, which also reads."""
    node = ServedNode(web_config=written(tmp_path, basic_auth_users={"prometheus": HASH}))
    token = {"Authorization": f"Bearer {node.token}"}
    with serving(node) as port:
        assert ask(port, "/probe/allreduce", "POST", basic("prometheus", "open sesame")).status == 401
        assert ask(port, "/metrics", headers=token).status == 200


def test_a_token_for_reading_does_not_change() -> None:
    """Without users the challenge asks for a token."""
    node = ServedNode(read_token="only for reading")  # noqa: S106 - made up
    with serving(node) as port:
        refused = ask(port, "/metrics")
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="gpumon"')
        reads = {"Authorization": "Bearer only for reading"}
        assert ask(port, "/metrics", headers=reads).status == 200
        assert ask(port, "/probe/allreduce", "POST", reads).status == 401


def test_commands_send_user_and_password_of_the_url(tmp_path: Path) -> None:
    """No error shows the password."""
    node = ServedNode(web_config=written(tmp_path, basic_auth_users={"prometheus": HASH}))
    with serving(node) as port:
        client = Client(f"http://prometheus:open%20sesame@127.0.0.1:{port}")
        assert client.get("/api/v1/health", ["verdicts"])
        with pytest.raises(Exception, match="password") as raised:
            Client(f"http://prometheus:hidden@127.0.0.1:{port}").get("/api/v1/health", ["verdicts"])
    assert "hidden" not in str(raised.value)


def test_prometheus_scrapes_with_certificate_and_password(authority: Authority, tmp_path: Path) -> None:
    """A real one, with the settings of docs/tls.md."""
    tls = tls_part(authority, client_auth_type="RequireAndVerifyClientCert", client_ca_file=str(authority.certificate))
    users = {"prometheus": HASH}
    folder = authority.folder
    (tmp_path / "password").write_text("open sesame")
    with serving(ServedNode(web_config=written(tmp_path, tls_server_config=tls, basic_auth_users=users))) as port:
        job = {
            "job_name": "gpumon",
            "scheme": "https",
            "scrape_interval": "1s",
            "tls_config": {
                "ca_file": str(authority.certificate),
                "cert_file": f"{folder}/client.crt",
                "key_file": f"{folder}/client.key",
            },
            "basic_auth": {"username": "prometheus", "password_file": f"{tmp_path}/password"},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        write_yaml(tmp_path / "prometheus.yml", {"scrape_configs": [job]})
        listening = free_port()
        with prometheus(tmp_path, listening):
            eventually(lambda: [each["value"][1] for each in query(listening, "up")] == ["1"])


INVALID = {
    "rate_limit: is not supported": {"rate_limit": {"interval": "1s", "burst": 20}},
    "cert: is not supported": {"tls_server_config": {"cert": "-----BEGIN", "key": "x"}},
    "the file: must be a mapping of keys to values": ["tls_server_config"],
    "key_file: is missing": {"tls_server_config": {"cert_file": "a"}},
    "client_auth_type: must be 'NoClientCert'": {
        "tls_server_config": {"cert_file": "a", "key_file": "b", "client_auth_type": "RequestClientCert"}
    },
    "has no effect without client_auth_type": {
        "tls_server_config": {"cert_file": "a", "key_file": "b", "client_ca_file": "ca"}
    },
    "'ann' is not a hash of bcrypt": {"basic_auth_users": {"ann": "plain"}},
    "'ben' is not a hash of bcrypt": {"basic_auth_users": {"ben": "$2y$10$short"}},
    "cert_file: is missing": {"tls_server_config": {"cert_file": "", "key_file": "b"}},
    "ann: must be text": {"basic_auth_users": {"ann": None}},
}


@each_case("words, content", list(INVALID.items()))
def test_an_invalid_configuration_is_an_error_that_names_the_key(words: str, content: Any, tmp_path: Path) -> None:
    """And the file."""
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(WebConfigError, match=words) as raised:
        read(path)
    assert str(path) in str(raised.value)


@each_case(
    "text, words",
    [
        ('basic_auth_users:\n  backup: "WEBPLAINSECRET\n', "line 3: is not YAML: a closing quote is missing"),
        ("basic_auth_users:\n  backup: !WEBPLAINSECRET\n", "line 2: a YAML tag is not supported"),
        ("basic_auth_users:\n  backup: !WEBPLAINSECRET!x\n", "line 2: a YAML tag is not supported"),
        ("basic_auth_users:\n  backup: *WEBPLAINSECRET\n", "line 2: YAML aliases are not supported"),
        ("basic_auth_users:\n  backup: WEBPLAINSECRET: x\n", "line 2: is not YAML"),
        ("http_server_config:\n  http2: false\n  http2: true\n", "line 3: http2 is already set"),
        ("basic_auth_users:\n  a: WEBPLAINSECRET\n", "'a' is not a hash of bcrypt"),
        ("basic_auth_users: a:WEBPLAINSECRET\n", "basic_auth_users: must be a mapping"),
    ],
)
def test_no_error_shows_a_password(text: str, words: str, tmp_path: Path) -> None:
    """It names the line instead, because it is in the log, on the page and in the report."""
    (tmp_path / "web.yml").write_text(text)
    with pytest.raises(WebConfigError, match=words) as raised:
        read(tmp_path / "web.yml")
    assert "WEBPLAIN" not in str(raised.value)


EMPTY = (
    "tls_server_config: {}\n",
    "basic_auth_users:\n#  prometheus: no one yet\n",
    "http_server_config:\n",
    "http_server_config:\n  headers:\n",
    "tls_server_config:\n  CERTIFICATE\n  cipher_suites: []\n  client_ca_file: ''\n  client_auth_type: ''\n",
    f"basic_auth_users:\n  1234: {HASH}\n",
)


@each_case("text", EMPTY)
def test_what_node_exporter_accepts_is_accepted(text: str, authority: Authority, tmp_path: Path) -> None:
    """A null or empty value is an absent one, and a user may be a number."""
    path = tmp_path / "web.yml"
    certificate = yaml.safe_dump(tls_part(authority)).rstrip().replace("\n", "\n  ")
    path.write_text(text.replace("CERTIFICATE", certificate))
    subprocess.run(["promtool", "check", "web-config", str(path)], check=True, capture_output=True, timeout=60)
    config = read(path)
    assert (tls_context(path, config) is not None) == ("cipher" in text)
    assert list(config.basic_auth_users) == (["1234"] if "1234" in text else [])


def test_an_empty_section_that_is_not_supported_is_refused(tmp_path: Path) -> None:
    """No section is left out silently, whatever it contains."""
    path = tmp_path / "web.yml"
    for section in ("{}", "{interval: 1s}"):
        path.write_text(f"rate_limit: {section}\n")
        with pytest.raises(WebConfigError, match="rate_limit: is not supported"):
            read(path)


def test_missing_files_are_errors_that_name_them(authority: Authority, tmp_path: Path) -> None:
    """The configuration itself, a certificate, and the authority of the clients."""
    with pytest.raises(WebConfigError, match="No such file"):
        read(tmp_path / "web.yml")
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump({"tls_server_config": {"cert_file": "a.crt", "key_file": "a.key"}}))
    with pytest.raises(WebConfigError, match=r"a\.crt"):
        tls_context(path, read(path))
    tls = tls_part(authority, client_auth_type="RequireAndVerifyClientCert")
    path.write_text(yaml.safe_dump({"tls_server_config": tls}))
    with pytest.raises(WebConfigError, match="needs client_ca_file"):
        tls_context(path, read(path))
