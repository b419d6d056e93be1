"""Secrets in values, logs and configuration files are replaced; other words are kept."""

from __future__ import annotations

from pathlib import Path

from each_case import each_case

from gpumon.config.redact import MAX_LINE, redact, redact_file, redact_text

R = "<redacted>"


@each_case(
    ("text", "expected"),
    [
        ("https://user:p@ssw0rd@am:9093", f"https://user:{R}@am:9093"),
        ("https://t0k@en@am/", f"https://{R}@am/"),
        ("passwd=x1 pass=x2 apikey=x3", f"passwd={R} pass={R} apikey={R}"),
        ("--password=x1 --api-key='x 2' -p 3", f"--password={R} --api-key='{R}' -p 3"),
        ("--password x1 --api-key 'x 2' -p 3", f"--password {R} --api-key '{R}' -p 3"),
        ("curl -u kim:x1 https://h/", f"curl -u kim:{R} https://h/"),
        ("token = x1, next", f"token = {R}, next"),
        ('password="x1 x2" user=u', f'password="{R}" user=u'),
        (r'msg="secret=\"x1 x2\" refused"', rf'msg="secret={R} refused"'),
        ("token_file=/a --token-file /b", "token_file=/a --token-file /b"),
        ("db_password_file: /a password_file=/b", "db_password_file: /a password_file=/b"),
        ("curl --user kim:x1 --user=kim:x2", f"curl --user kim:{R} --user=kim:{R}"),
        ("curl --proxy-user 'kim:x1' -U kim:x2", f"curl --proxy-user 'kim:{R}' -U kim:{R}"),
        ("mail by kim:p@ss@mail:587, kim@b.example:x1@am", f"mail by kim:{R}@mail:587, kim@b.example:{R}@am"),
        ("Cookie: sid=x1; other=x2", f"Cookie: {R}"),
        ('"Set-Cookie: sid=x1; Secure" next', f'"Set-Cookie: {R}" next'),
        ("curl -b sid=x1 --cookie sid=x2 h", f"curl -b sid={R} --cookie {R} h"),
        ("authorization: x1", f"authorization: {R}"),
        ("'Proxy-Authorization: ApiKey x1' next", f"'Proxy-Authorization: {R}' next"),
        ("--oauth2-bearer x1", f"--oauth2-bearer {R}"),
        ("POST https://hooks.slack.com/services/T0/B0/x1: 404", f"POST https://hooks.slack.com/services/{R} 404"),
        ("--notifications.apprise-urls=slack://x1/x2 next", f"--notifications.apprise-urls={R}"),
        ("apprise_urls: [/a/url, slack://x1/x2]", f"apprise_urls: [{R}"),
        ("slack xoxb-1-x1 and xapp-1-x2, next", f"slack xoxb-{R} and xapp-{R}, next"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x1-_x, next", f"got eyJ{R}, next"),
        ("pwd x1 passwd 'x 2' password x3", f"pwd {R} passwd '{R}' password {R}"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nx1\n-----END RSA PRIVATE KEY----- b", f"a {R} b"),
        ("a\n-----BEGIN PRIVATE KEY-----\nx1\nx2", f"a\n{R}"),
        ("prometheus: $2y$10$x1./x", f"prometheus: $2y$10${R}"),
        ("DBPASS=x1 pw=x2 dbPass: x3", f"DBPASS={R} pw={R} dbPass: {R}"),
        ("AccountKey=x1; SecretKey: x2", f"AccountKey={R}; SecretKey: {R}"),
        ("used token x1, next; the token expired", f"used token {R}, next; the token expired"),
        (f"got ghp_{'a1' * 18}, hf_{'aB' * 17}, glpat-a_b-{'c3' * 8} next", f"got ghp_{R}, hf_{R}, glpat-{R} next"),
        ("id AKIAIOSFODNN7EXAMPLE, next", f"id AKIA{R}, next"),
    ],
)
def test_secrets_in_a_text(text: str, expected: str) -> None:
    """Also behind a blank in quotes, and up to the last @ of a URL's authority."""
    assert redact_text(text) == expected


def test_a_line_of_the_log_is_kept() -> None:
    """Nothing in it is a secret."""
    line = (
        'time=2026-11-24T05:49:10.442Z level=info msg="probe passed, authority of gpumon.service: 7 tokens" '
        "url=http://127.0.0.1:17400/ keys=3 path=/var/lib/gpumon/token compass=n; journalctl -u gpumon; a@b.example "
        "bypass=1 publickey=2 hf_hub_download; "
        "/etc/passwd is read; systemd[1]: user@1000.service http://am:9093/a@b --user 1000"
    )
    assert redact_text(line) == line


@each_case("unit", ["passw", "a:", "a;:", "-u,", "://", "eyJ"])
def test_a_long_line_is_cut(unit: str) -> None:
    """A hostile one cannot hold up the patterns, and the lines around it are kept."""
    shown = redact_text(f"first\n{unit * 100_000}\nlast")
    assert len(shown) < 2 * MAX_LINE
    assert shown.startswith("first\n")
    assert shown.endswith("<cut at 2000 characters>\nlast")


def test_a_secret_at_the_cut_is_left_out() -> None:
    """Half a password of a URL has no @ after it, by which it is recognized."""
    line = "x " * (MAX_LINE // 2 - 20) + "https://kim:s3cret" + "s3cret" * 20 + "@am/"
    assert "s3cret" not in redact_text(line)


@each_case(
    ("name", "value", "expected"),
    [
        ("scheduler_gate", ("/bin/gate", "-u", "x1", "x2", "--node", "n"), ["/bin/gate", "-u", R, R, "--node", "n"]),
        ("scheduler_gate", ("g", "--auth", "-x1", "x2"), ["g", "--auth", R, R]),
        ("scheduler_gate", ("g", "--apikey", "x1"), ["g", "--apikey", R]),
        ("scheduler_gate", ("g", "--token-file", "/a"), ["g", "--token-file", "/a"]),
        ("scheduler_gate", ("g", "--user", "kim:x1", "--proxy-user", "x2"), ["g", "--user", R, "--proxy-user", R]),
        ("scheduler_gate", ("g", "-b", "sid=x1", "--cookie", "x2"), ["g", "-b", R, "--cookie", R]),
        ("scheduler_gate", ("g", "--oauth2-bearer", "x1"), ["g", "--oauth2-bearer", R]),
        ("web.read_token_file", ["x1"], R),
        (
            "nccl_environment",
            {"NCCL_APIKEY": "x1", "NCCL_PWD": "x2", "NCCL_DEBUG": "INFO"},
            {"NCCL_APIKEY": R, "NCCL_PWD": R, "NCCL_DEBUG": "INFO"},
        ),
        ("notifications.alertmanagers", ("https://am/x1/x2",), [f"https://am/{R}"]),
        ("notifications.alertmanagers.0", "am.example.com/x1 x2", f"am.example.com/{R}"),
        ("notifications.webhook_url_file", Path("https:/hooks.example.com/x1"), R),
        ("notifications.apprise_urls", ("slack://x1/x2", "/a/url", "x1"), [f"slack://{R}", "/a/url", R]),
        ("notifications.apprise_urls.1", "mailto://u:x1@h/x2", f"mailto://{R}"),
        ("web.token_file", Path("/a/token"), Path("/a/token")),
    ],
)
def test_secrets_in_values(name: str, value: object, expected: object) -> None:
    """Words after a flag, entries of a mapping, and paths of webhooks and Alertmanagers."""
    assert redact(name, value) == expected


BROKEN = """\
# the password was s3cret
notifications:
  webhook_url: https://hooks.example.com/s3cret/x s3cret
  alertmanagers: ["https://u:s3cret@am.example.com/s3cret"]  # s3cret
  webhook_url_file: hooks.example.com/s3cret
probe:
  scheduler_gate: [/bin/gate, --token, s3cret, s3cret]
  nccl_environment:
    NCCL_API_KEY: |
      s3cret
      s3cret
    NCCL_PWD: 4711
  interval_seconds: 3
  enabled: true
  gpus: [
"""


def test_a_file_that_is_not_yaml() -> None:
    """Its keys, numbers and switches are kept."""
    shown = redact_file(BROKEN)
    assert "s3cret" not in shown
    assert "4711" not in shown
    assert {"  webhook_url: <redacted>", "  interval_seconds: 3", "  enabled: true"} <= set(shown.splitlines())
    assert len(shown.splitlines()) == len(BROKEN.splitlines())
