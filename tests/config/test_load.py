"""Sources of settings, and the errors of invalid ones."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.config.configuration_error import MAX_SHOWN, ConfigurationError
from gpumon.config.default_paths import state_directory
from gpumon.config.load import configuration_file, load
from gpumon.config.settings_table import FLAGS, changes, merge_reloaded, settings, show
from gpumon.health.checks.versions import VERSIONS
from gpumon.health.table import LIMITS
from gpumon.trusted_file import MAX_BYTES

GPU_FORMS = "must be the uuid of a GPU (GPU-...), its PCI bus id (0000:18:00.0) or its index, not "


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"STATE_DIRECTORY": str(tmp_path)}


def written(folder: Path, text: str) -> Path:
    path = folder / "gpumon.yml"
    path.write_text(text, encoding="utf-8")
    return path


def complaints(path: Path | None, environ: dict[str, str], flags: dict[str, str | None] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(
            path,
            flags or {},
            environ,
            profiles=lambda: ("h100x8", "t4x1"),
        )
    return str(raised.value).splitlines()


def test_every_setting_has_a_default(environ: dict[str, str], tmp_path: Path) -> None:
    configuration = load(None, {}, environ)

    assert configuration.web.listen_address == "127.0.0.1:17400"
    assert configuration.web.token_file == tmp_path / "token"
    assert configuration.store.path == tmp_path / "gpumon.db"
    assert configuration.poll.interval_seconds == 1
    assert configuration.gpus.expected_count is None


def test_flags_win_over_environment_over_file(environ: dict[str, str], tmp_path: Path) -> None:
    """Each setting comes from the highest source that gives it, and its origin names that source."""
    path = written(tmp_path, "log:\n  level: debug\n  format: json\npoll: {interval_seconds: 2}\n")
    environ |= {"GPUMON_LOG__LEVEL": "warning", "GPUMON_LOG__FORMAT": "logfmt"}

    configuration = load(path, {"--log.level": "error", "--log.format": None}, environ)

    assert (configuration.log.level, configuration.origin("log.level")) == ("error", "--log.level")
    assert (configuration.log.format, configuration.origin("log.format")) == ("logfmt", "GPUMON_LOG__FORMAT")
    assert (configuration.poll.interval_seconds, configuration.origin("poll.interval_seconds")) == (2, f"{path}:4")
    assert configuration.origin("web.listen_address") == "default"


def test_all_problems_are_reported_at_once_with_line_and_remedy(environ: dict[str, str], tmp_path: Path) -> None:
    """Each error is one line with file and line, variable or flag, and the remedy."""
    path = written(
        tmp_path,
        """web:
  listen_adress: :1
poll:
  interval_seconds: 0
weeb: {}
log: debug
gpus:
  exclude:
    - 0000:18:00.0
    - wrong
health:
  thresholds: {margin_celsiu: 0}
simulate: {scenario: x.yml}
""",
    )
    environ |= {"GPUMON_GPUS__EXPECTED_COUNT": "eight", "GPUMON_STORE_PATH": "/x"}

    problems = complaints(path, environ, {"--web.listen-address": "nowhere"})

    lines = [int(line[1]) for problem in problems if (line := re.match(rf"{path}:(\d+):", problem))]
    assert lines == [2, 4, 5, 6, 10, 12, 13]
    assert sorted(problems) == [
        (
            "--web.listen-address: web.listen_address: must be HOST:PORT, [IPV6]:PORT, or :PORT for every address, "
            "not 'nowhere'; for example --web.listen-address='127.0.0.1:17400'"
        ),
        (
            f"{path}:10: gpus.exclude.1: must be the uuid of a GPU (GPU-...), its PCI bus id (0000:18:00.0) or its "
            "index, not 'wrong'; for example exclude: [GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f, '0000:18:00.0']"
        ),
        f"{path}:12: health.thresholds.margin_celsiu: unknown name; did you mean min_margin_celsius?",
        f"{path}:13: simulate.scenario: requires a profile; set simulate.profile (--simulate) too",
        f"{path}:2: web.listen_adress: unknown key; did you mean listen_address?",
        (f"{path}:4: poll.interval_seconds: must be 0.1 or more, not 0; for example interval_seconds: 1"),
        f"{path}:5: weeb: unknown key; did you mean web?",
        f"{path}:6: log: must be a mapping of keys to values; valid keys: level, format",
        (
            "GPUMON_GPUS__EXPECTED_COUNT: gpus.expected_count: must be a whole number, not 'eight'; "
            "for example GPUMON_GPUS__EXPECTED_COUNT=8"
        ),
        "GPUMON_STORE_PATH: is not a setting; use GPUMON_STORE__PATH",
    ]


def test_unknown_names_of_checks_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    """Misspelled names of checks and thresholds are errors, because they would have no effect. So are old names."""
    thresholds = "{xid_recuring: 3, allreduce_failures: 4}"
    path = written(tmp_path, f"health:\n  thresholds: {thresholds}\n  disabled_checks: [nvlink_down, row_remap]\n")

    assert sorted(complaints(path, environ)) == [
        f"{path}:2: health.thresholds.allreduce_failures: is renamed; write probe_failures",
        f"{path}:2: health.thresholds.xid_recuring: unknown name; did you mean xid_recurring?",
        f"{path}:3: health.disabled_checks: unknown name 'row_remap'; did you mean gpu_row_remap_many?",
    ]
    (complaint,) = complaints(None, environ | {"GPUMON_HEALTH__DISABLED_CHECKS": "nvlink_down,heat"})
    assert complaint.startswith(
        "GPUMON_HEALTH__DISABLED_CHECKS: health.disabled_checks: unknown name 'heat'; valid names: allgather_"
    )


@each_case(
    ("thresholds", "complaint"),
    [
        (
            "{xid_recurring: 0}",
            "xid_recurring: should be 1 or more, not 0; leave it out for the default, 5, or",
        ),
        ("{max_ecc_corrected_sram: -1}", "max_ecc_corrected_sram: should be 0 or more, not -1"),
        ("{pcie_busy_ratio: 10}", "pcie_busy_ratio: should be above 0, at most 1, not 10"),
        ("{spin_utilization_ratio: 0}", "spin_utilization_ratio: should be above 0, at most 1, not 0"),
        ("{max_core_celsius: nan}", "max_core_celsius: should be 30 to 150, not nan"),
        (
            "{max_infiniband_ack_timeouts_per_second: inf}",
            "max_infiniband_ack_timeouts_per_second: should be 0 or more, not inf",
        ),
        ("{min_infiniband_port_bytes_per_second: 400}", "min_infiniband_port_bytes_per_second: should be 100000000 to"),
        (
            "{max_retired_pages: 61}",
            "max_retired_pages: should be at most max_retired_pages_critical, which is 60, not 61",
        ),
        (
            "{max_retired_pages_critical: 5}",
            "max_retired_pages_critical: should be at least max_retired_pages, which is 10, not 5",
        ),
    ],
)
def test_invalid_thresholds_of_checks_are_refused(environ: dict[str, str], thresholds: str, complaint: str) -> None:
    """A threshold with which a check always or never fires is refused."""
    problems = complaints(None, environ | {"GPUMON_HEALTH__THRESHOLDS": thresholds})

    assert problems[0].startswith(f"GPUMON_HEALTH__THRESHOLDS: health.thresholds.{complaint}")


@pytest.mark.parametrize("lower", [5.0, None])
def test_valid_thresholds_of_checks_are_accepted(environ: dict[str, str], lower: float | None) -> None:
    """The default thresholds, null for off, and a pair that is changed together are accepted."""
    shipped = {name: limit.default for name, limit in LIMITS.items()}
    moved = {"max_retired_pages": lower, "max_retired_pages_critical": 5.0}
    chosen = shipped | {"max_core_celsius": None} | moved
    written = ", ".join(f"{name}: {'null' if value is None else value}" for name, value in chosen.items())

    configuration = load(None, {}, environ | {"GPUMON_HEALTH__THRESHOLDS": f"{{{written}}}"})

    assert configuration.health.thresholds == chosen


@each_case(
    ("text", "complaint"),
    [
        ("log: {level: info}\nlog: {format: json}\n", ":2: log: is already set in line 1; delete one of them"),
        (
            "log:\n  level: [\n",
            ":3: is not YAML: a value or a closing ] is missing; correct the line",
        ),
        ("log: {level: info\n", ":2: is not YAML: a comma or a closing } is missing"),
        ("log: [info\n", ":2: is not YAML: a comma or a closing ] is missing"),
        ("log:\n  level: info\n format: json\n", ":3: is not YAML: the indentation is wrong, or text follows a value"),
        ("log: {}\nlevel info\nweb: {}\n", ":3: is not YAML: a colon after the key is missing"),
        ("log: level: info\n", ":1: is not YAML: a key is not allowed here: correct the indentation"),
        ("log: - level\n", ":1: is not YAML: sequence entries are not allowed here"),
        ("log: 'info\n", ":2: is not YAML: a closing quote is missing"),
        ("log:\n\tlevel: info\n", ":2: is not YAML: a tab is not allowed here: indent with spaces"),
        ("log: &a {level: *a}\n", ":1: YAML aliases are not supported; correct the line"),
        ("log:\n  level: !!timestamp 2020-01-01\n", ":2: the tag tag:yaml.org,2002:timestamp is not supported"),
        ("- web\n", ":1: must be a mapping of keys to values; valid keys: web, store, log"),
        ("? [a]\n: b\n", ":1: a key must be a scalar; correct the line"),
        ("log: {level: on}\n", ":1: log.level: must be 'debug', 'info', 'warning' or 'error', not 'on'"),
        (
            "probe: {interval_seconds: 6h}\n",
            ":1: probe.interval_seconds: must be a number, such as 21600 (seconds), not '6h'",
        ),
        (
            "probe: {schedules: {copy: 0 3 * * 0}}\n",
            ":1: probe.schedules.copy: must name weekdays (sun, mon-fri): programs count them differently",
        ),
        (
            "probe: {schedules: {gemm: 6h}}\n",
            ":1: probe.schedules.gemm: must be the name of a probe: allreduce, ",
        ),
        ("poll: {interval_seconds: .inf}\n", ":1: poll.interval_seconds: must be a number, not '.inf'"),
        (
            "probe: {nccl_environment: {PATH: /}}\n",
            ":1: probe.nccl_environment.PATH: must be the name of an NCCL",
        ),
        ("[" * 2000, ":1: is not YAML: too many nested brackets"),
        ("log: \x00", ": is not YAML: a character does not exist or is not allowed"),
        (
            'log:\n  level: "\\UFFFFFFFF"\n',
            ":2: is not YAML: a character does not exist or is not allowed; correct the line",
        ),
        ('log:\n  level: "\\U00110000"\n', ":2: is not YAML: a character does not exist or is not allowed"),
    ],
)
def test_unsupported_yaml_is_refused(environ: dict[str, str], tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)

    assert complaints(path, environ)[0].startswith(f"{path}{complaint}")


@each_case(
    ("text", "complaint"),
    [
        (
            "notifications: {apprise_urls: [s3cret]}",
            "notifications.apprise_urls.0: must be an Apprise URL, such as slack://..., or the absolute path of a ",
        ),
        (
            "notifications: {slack_url_file: /a/s}",
            "notifications.slack_url_file: is replaced; write notifications.apprise_urls: [/path/of/that/file]; ",
        ),
        (
            "notifications: {smtp_to: [s3cret@b.example]}",
            "notifications.smtp_to: is replaced; write notifications.apprise_urls: ['mailtos://USER:PASSWORD@HOST:PORT?",
        ),
        (
            "web: {read_token_file: [s3cret]}",
            "web.read_token_file: must be a path, not '<redacted>'; ",
        ),
        (
            "notifications: {webhook_token: s3cret}",
            "notifications.webhook_token: unknown key; did you mean webhook_token_file?",
        ),
        ("web: {token:s3cret}", "web.token:<redacted>: unknown key; valid names: "),
    ],
)
def test_a_secret_in_the_wrong_place_is_refused(
    environ: dict[str, str], tmp_path: Path, text: str, complaint: str
) -> None:
    """The problem names the setting for it, and does not show the secret."""
    path = written(tmp_path, text)
    (shown,) = complaints(path, environ)
    assert shown.startswith(f"{path}:1: {complaint}")
    assert "s3cret" not in shown


def test_files_that_cannot_be_read_are_named(environ: dict[str, str], tmp_path: Path) -> None:
    """A missing file, a folder and invalid text are problems with a message and no traceback."""
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"log: \xff")

    missing = tmp_path / "missing.yml"
    assert complaints(missing, environ) == [
        f"{missing}: cannot be read (No such file or directory); correct --config.file"
    ]
    assert complaints(tmp_path, environ) == [f"{tmp_path}: cannot be read (Is a directory); correct --config.file"]
    assert complaints(binary, environ) == [f"{binary}: is not UTF-8 at byte 5; save it as UTF-8"]


def test_what_is_not_a_small_regular_file_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    """A FIFO, a device without end and a large file are refused, and none of them blocks the reader."""
    fifo, large = tmp_path / "fifo.yml", tmp_path / "large.yml"
    os.mkfifo(fifo)
    large.write_bytes(b"# " * MAX_BYTES)
    for path, wrong in ((fifo, "is not a regular file"), (Path("/dev/zero"), "is not a regular file")):
        assert complaints(path, environ) == [f"{path}: cannot be read ({wrong}); correct --config.file"]
    assert complaints(large, environ) == [f"{large}: cannot be read (has more than 256 KiB); correct --config.file"]


@pytest.mark.slow
@each_case(
    "text", ["{0}: 1", "log:\n  {0}: 1", "health:\n  thresholds:\n    {0}: 1", "health:\n  disabled_checks: [{0}]"]
)
def test_thousands_of_unknown_names_are_a_short_error(environ: dict[str, str], tmp_path: Path, text: str) -> None:
    head, _, row = text.rpartition("\n")
    names = [f"name{number}" for number in range(5000)]
    listed = row.format(", ".join(names)) if "[" in row else "\n".join(row.format(name) for name in names)
    path = written(tmp_path, f"{head}\n{listed}")

    lines = complaints(path, environ)

    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1] == f"and {5000 - MAX_SHOWN} more problems"


@each_case(
    ("section", "complaint"),
    [
        ("web: {token_file: 3}", "web.token_file: must be a path, not 3"),
        ("web: {allowed_hosts: 3}", "web.allowed_hosts: must be a list, not 3"),
        ("poll: {gpm: maybe}", "poll.gpm: must be true or false, not 'maybe'"),
        ("store: {retention_rows: 1.5}", "store.retention_rows: must be a whole number, not 1.5"),
        ("store: {retention_days: 0}", "store.retention_days: must be above 0, not 0"),
        ("poll: {interval_seconds: 1e3}", "poll.interval_seconds: must be at most 60, not '1e3'"),
        ("poll: {interval_seconds: nan}", "poll.interval_seconds: must be a finite number, not 'nan'"),
        ("probe: {nccl_environment: 3}", "probe.nccl_environment: must be a mapping of keys to values, not 3"),
        ("notifications: {nvsentinel_node: 3}", "notifications.nvsentinel_node: must be text, not 3"),
    ],
)
def test_errors_name_the_valid_type(environ: dict[str, str], tmp_path: Path, section: str, complaint: str) -> None:
    """An invalid value is described in the terms of YAML, not of Python or pydantic."""
    path = written(tmp_path, f"{section}\n")
    (problem,) = complaints(path, environ)
    assert problem.startswith(f"{path}:1: {complaint}; for example ")


@each_case(
    ("section", "complaint"),
    [
        *(
            (f"gpus: {{exclude: ['{gpu}']}}", f"gpus.exclude.0: {GPU_FORMS}{gpu!r}")
            for gpu in ("0000:18:20.0", "0000:18:00.8", "\u0663", "18:00")
        ),
        *(
            (
                f"links: {{exclude: ['{name}']}}",
                "links.exclude.0: must be a device (mlx5_3), a PCI address (0000:86:00.0)",
            )
            for name in ("mlx5_0/1", "*", "", "a b")
        ),
        *(
            (f"web: {{listen_address: '{address}'}}", "web.listen_address: must be HOST:PORT")
            for address in ("17400", "host:65536", "::1:80", "http://x:1", "host:")
        ),
        *(
            (f"probe: {{{key}_seconds: 1e12}}", f"probe.{key}_seconds: ")
            for key in ("interval", "jitter", "initial_delay", "min_idle", "deadline")
        ),
        ('probe: {nccl_environment: {"NCCL_A=B": 1}}', "probe.nccl_environment.NCCL_A=B: "),
        ('probe: {nccl_environment: {NCCL_ALGO: "Ring\\0"}}', "probe.nccl_environment.NCCL_ALGO: "),
        ('probe: {nccl_environment: {NCCL_ALGO: "\\ud800"}}', "probe.nccl_environment.NCCL_ALGO: "),
        ('probe: {scheduler_gate: "/usr/bin/gate\\0"}', "probe.scheduler_gate.0: "),
        ('probe: {scheduler_gate: ["", --node]}', "probe.scheduler_gate: "),
        ('probe: {python: "/usr/bin/python3\\0"}', "probe.python: "),
        ('probe: {python: ""}', "probe.python: "),
        ("probe: {python: /}", "probe.python: "),
        ("probe: {python: ~nobody-by-this-name/bin/python}", "probe.python: "),
    ],
)
def test_values_that_cannot_work_are_refused(
    environ: dict[str, str], tmp_path: Path, section: str, complaint: str
) -> None:
    """A value without effect, or with which the server or a run could not start, is an error when it is read."""
    path = written(tmp_path, f"{section}\n")
    assert complaints(path, environ)[0].startswith(f"{path}:1: {complaint}")


def test_plain_scalars_are_text(environ: dict[str, str], tmp_path: Path) -> None:
    """Unlike in YAML 1.1 a PCI address is no sexagesimal number and `off` no truth value."""
    path = written(
        tmp_path,
        "gpus: {exclude: [0000:18:00.0, 3, GPU-4d2f7c1e]}\n"
        "probe: {enabled: no, nccl_environment: {NCCL_DEBUG: off, NCCL_NET_GDR_LEVEL: 5}}\n",
    )

    configuration = load(path, {}, environ)

    assert configuration.gpus.exclude == ("0000:18:00.0", "3", "GPU-4d2f7c1e")
    assert configuration.probe.enabled is False
    assert configuration.probe.nccl_environment == {"NCCL_DEBUG": "off", "NCCL_NET_GDR_LEVEL": "5"}


def test_lists_and_mappings_fit_in_the_environment(environ: dict[str, str]) -> None:
    """A list has brackets or commas, a mapping has braces; an empty variable is not set."""
    environ |= {
        "GPUMON_GPUS__EXCLUDE": "0, GPU-4d2f7c1e",
        "GPUMON_HEALTH__THRESHOLDS": "{max_core_celsius: 90, min_margin_celsius: null}",
        "GPUMON_LOG__LEVEL": "",
    }

    configuration = load(None, {}, environ)

    assert configuration.gpus.exclude == ("0", "GPU-4d2f7c1e")
    assert configuration.health.thresholds == {"max_core_celsius": 90, "min_margin_celsius": None}
    assert configuration.log.level == "info"


def test_variables_of_kubernetes_are_ignored(environ: dict[str, str]) -> None:
    """Variables such as GPUMON_PORT, which Kubernetes sets for a service gpumon, are neither settings nor errors."""
    environ |= {"GPUMON_PORT": "tcp://10.0.0.1:17400", "GPUMON_PORT_17400_TCP_ADDR": "10.0.0.1"}

    assert load(None, {}, environ) == load(None, {}, {"STATE_DIRECTORY": environ["STATE_DIRECTORY"]})


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:17400", ("127.0.0.1", 17400)), ("[::1]:0", ("::1", 0)), (":80", ("", 80)), ("node7:1", ("node7", 1))],
)
def test_a_listen_address_has_host_and_port(environ: dict[str, str], address: str, parts: tuple[str, int]) -> None:
    assert load(None, {"--web.listen-address": address}, environ).web.address == parts


@pytest.mark.parametrize(
    ("environ", "root", "expected"),
    [
        ({"STATE_DIRECTORY": "/a:/b"}, True, "/a"),
        ({"HOME": "/root"}, True, "/var/lib/gpumon"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, False, "/s/gpumon"),
        ({"HOME": "/h"}, False, "/h/.local/state/gpumon"),
    ],
)
def test_the_default_state_directory(environ: dict[str, str], root: bool, expected: str) -> None:  # noqa: FBT001
    """The state directory is that of systemd, else the system's for root, else the user's."""
    assert state_directory(environ, root=root) == expected


def test_configuration_file_is_the_flag_then_the_variable(tmp_path: Path) -> None:
    """--config.file has precedence over GPUMON_CONFIG__FILE, which is not a setting."""
    named = {"GPUMON_CONFIG__FILE": "/b", "STATE_DIRECTORY": str(tmp_path)}

    assert configuration_file("/a", named) == Path("/a")
    assert configuration_file(None, named) == Path("/b")
    assert load(None, {}, named).origin("log.level") == "default"


def test_the_shown_configuration_can_be_loaded(environ: dict[str, str], tmp_path: Path) -> None:
    before = load(None, {"--simulate": "h100x8"}, environ | {"GPUMON_GPUS__EXCLUDE": "[0000:18:00.0]"})

    after = load(written(tmp_path, show(before)), {}, {"HOME": "/elsewhere"})

    assert changes(before, after) == ()
    assert "profile: h100x8  # --simulate" in show(before)


def test_secrets_are_not_shown(environ: dict[str, str]) -> None:
    """Values with secret names and passwords in URLs are redacted, in errors too; paths to secrets are not."""
    environ["GPUMON_PROBE__NCCL_ENVIRONMENT"] = "{NCCL_API_TOKEN: hunter2, NCCL_URL: 'http://me:hunter2@host/'}"
    bad = {"GPUMON_PROBE__NCCL_ENVIRONMENT": "{NCCL_API_TOKEN: [hunter2]}"}

    shown = show(load(None, {}, environ))

    assert "hunter2" not in shown
    assert "http://me:<redacted>@host/" in shown
    assert environ["STATE_DIRECTORY"] + "/token" in shown
    assert "hunter2" not in "".join(complaints(None, environ | bad))


def test_changes_list_the_settings_that_a_reload_changed(environ: dict[str, str]) -> None:
    """Each changed setting is reported with both values, and whether it needs a restart."""
    before = load(None, {}, environ)
    after = load(None, {"--poll.interval": "5", "--web.listen-address": ":1"}, environ)

    assert [tuple(change) for change in changes(before, after)] == [
        ("web.listen_address", "'127.0.0.1:17400'", "':1'", True),
        ("poll.interval_seconds", "1.0", "5.0", False),
    ]


def test_a_reload_keeps_settings_that_need_a_restart(environ: dict[str, str], tmp_path: Path) -> None:
    """After a reload only settings that need no restart take effect; values and origins match."""
    running = load(None, {"--simulate": "h100x8", "--log.level": "error"}, environ)
    text = "web: {token_file: /other}\nsimulate: {profile: t4x1, scenario: s.yml}\npoll: {interval_seconds: 5}\n"
    path = written(tmp_path, text)

    merged = merge_reloaded(running, load(path, {}, environ))

    assert {name for name in settings() if merged.value(name) != running.value(name)} == {
        "poll.interval_seconds",
        "log.level",
    }
    assert (merged.web, merged.simulate) == (running.web, running.simulate)
    assert merged.origin("simulate.profile") == "--simulate"
    assert merged.origin("poll.interval_seconds") == f"{path}:3"


@each_case(
    ("variables", "flags", "complaint"),
    [
        ({"GPUMON_FOO__BAR": "1"}, {}, "GPUMON_FOO__BAR: foo: unknown key; valid names: "),
        ({"GPUMON_WEBB__TOKEN_FILE": "/x"}, {}, "GPUMON_WEBB__TOKEN_FILE: webb: unknown key; did you mean web?"),
        (
            {},
            {"--simulate.scenario": "s.yml"},
            "--simulate.scenario: simulate.scenario: requires a profile; set simulate.profile (--simulate) too",
        ),
        ({}, {"--simulate": "nope"}, "--simulate: simulate.profile: unknown name 'nope'; valid names: h100x8, t4x1"),
        (
            {"GPUMON_PROBE__INTERVAL_SECONDS": "300", "GPUMON_PROBE__JITTER_SECONDS": "301"},
            {},
            (
                "GPUMON_PROBE__JITTER_SECONDS: probe.jitter_seconds: is longer than the interval of 300 s; "
                "set it to at most 300, or increase the interval"
            ),
        ),
        (
            {"GPUMON_PROBE__JITTER_SECONDS": "21601"},
            {},
            (
                "GPUMON_PROBE__JITTER_SECONDS: probe.jitter_seconds: is longer than the interval of 21600 s; "
                "set it to at most 21600, or increase the interval"
            ),
        ),
        (
            {"GPUMON_SIMULATE__PROFILE": "h100x9"},
            {},
            "GPUMON_SIMULATE__PROFILE: simulate.profile: unknown name 'h100x9'; did you mean h100x8?",
        ),
    ],
)
def test_the_source_of_an_invalid_setting_is_named(
    environ: dict[str, str], variables: dict[str, str], flags: dict[str, str | None], complaint: str
) -> None:
    """An unknown section, or a setting that needs another, is one line that starts with its variable or flag."""
    problems = complaints(None, environ | variables, flags)

    assert len(problems) == 1
    assert problems[0].startswith(complaint)


def test_flags_are_the_documented_flags() -> None:
    assert {flag.name for flag in FLAGS} == {
        *("--config.file", "--web.config.file", "--web.listen-address", "--web.token-file", "--web.socket"),
        *(
            "--store.path",
            "--health.file",
            "--simulate",
            "--simulate.scenario",
            "--log.level",
            "--log.format",
            "--poll.interval",
        ),
    }
    assert {flag.setting for flag in FLAGS if flag.setting} <= set(settings())


def test_every_version_name_is_in_the_documentation() -> None:
    """The documentation lists every version name, because the setting refers to it."""
    manual = (Path(__file__).parents[2] / "docs" / "inventory.md").read_text(encoding="utf-8")

    assert all(f"`{name}`" in manual for name in VERSIONS)


def test_unknown_version_names_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, "health:\n  versions: {vbios: 96.00.89.00.01, bios: '1', x: '2'}\n")

    assert sorted(complaints(path, environ)) == [
        f"{path}:2: health.versions.bios: unknown name; did you mean vbios?",
        f"{path}:2: health.versions.x: unknown name; valid names: " + ", ".join(sorted(VERSIONS)),
    ]


def test_adapters_are_named_by_device_address_and_board(environ: dict[str, str], tmp_path: Path) -> None:
    """Lists and text separated by commas are accepted."""
    path = written(tmp_path, "links: {exclude: [mlx5_an*, '0000:05:00.0'], fabric: 'mlx5_[0-7], MT_0000000838'}\n")

    links = load(path, {}, environ).links
    assert (links.exclude, links.fabric) == (("mlx5_an*", "0000:05:00.0"), ("mlx5_[0-7]", "MT_0000000838"))
