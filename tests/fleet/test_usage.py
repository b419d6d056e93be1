"""`gpumon usage`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from agents import eventually, free_port
from each_case import each_case
from servers import http_server, prometheus, query, write_yaml

from gpumon.cli.main import main
from gpumon.fleet.recording_rules import BUSY, HELD, POWER
from gpumon.fleet.recording_rules import IDLE as IDLE_GPUS
from gpumon.fleet.usage import NONE, added_up
from gpumon.outputs.formatting import HOUR
from gpumon.outputs.node_text import IDLE


def use(job: str, *, user: str | None = None, gpu: int = 0, **held: float) -> Any:
    """Return an allocation of ten hours, of which `held` has the use, as the API returns it."""
    unused = dict.fromkeys(("busy_seconds", *IDLE, "energy_joules"), 0.0)
    place = {"gpu": gpu, "uuid": f"GPU-{gpu}", "since": "2026-01-01T00:00:00.000Z"}
    return {
        "job": job,
        "owner": {"user": user, "account": None, "pod_namespace": None},
        "allocation": {**place, "held_seconds": HOUR, **unused, **held},
        "until": "2026-01-01T10:00:00.000Z",
    }


USES = (
    use("slurm/1", user="ann", no_process_seconds=HOUR),
    use("slurm/2", user="ann", gpu=1, cold_seconds=HOUR / 2, busy_seconds=HOUR / 2, energy_joules=3.6e6),
    use("slurm/3", gpu=1, busy_seconds=HOUR),
)
EARLIEST = 0.0


def test_uses_are_added_up_by_each_kind_of_name() -> None:
    """The GPU hours of all allocations with the same user, job or GPU are added up, the most idle first."""
    by = {
        kind: [(each.name, each.gpu_hours, each.idle_hours) for each in added_up(USES, kind, EARLIEST)]
        for kind in ("user", "job", "gpu", "account")
    }
    assert by == {
        "user": [("ann", 2.0, 1.5), (NONE, 1.0, 0.0)],
        "job": [("slurm/1", 1.0, 1.0), ("slurm/2", 1.0, 0.5), ("slurm/3", 1.0, 0.0)],
        "gpu": [("0", 1.0, 1.0), ("1", 2.0, 0.5)],
        "account": [(NONE, 3.0, 1.5)],
    }
    (ann, _) = added_up(USES, "user", EARLIEST)
    assert ann.kwh == 1.0


def test_only_the_part_of_an_allocation_in_the_time_counts() -> None:
    """Of an allocation of ten hours, three of which are in the time, three tenths of its use count."""
    from_seven = 1767250800.0  # 2026-01-01T07:00:00Z
    (whole,) = added_up([use("slurm/1", held_seconds=10 * HOUR, energy_joules=3.6e7)], "job", from_seven)
    assert whole.gpu_hours == pytest.approx(3.0)
    assert whole.kwh == pytest.approx(3.0)


@each_case(
    ("arguments", "message"),
    [
        (["--prometheus", "prometheus:9090"], "'prometheus:9090' is not a URL: write it as http://"),
        (
            ["--prometheus", "http://127.0.0.1:1/base"],
            "http://127.0.0.1:1/base to GET /base/api/v1/query: [Errno 111] Connection refused. Check the address, and",
        ),
        (["--prometheus", "http://127.0.0.1:1", "--url", "http://gpu-1"], "not allowed with argument --prometheus"),
        (["--prometheus", "http://127.0.0.1:1", "--by", "gpu"], "--by gpu is about one node: ask its agent with --url"),
        (["--prometheus", "http://127.0.0.1:1", "--since", "soon"], "--since soon: not a time before now"),
        (["--price", "-3"], "argument --price: -3 is not a price: write a number from 0 on, such as 2.50"),
        (["--price", "nan"], "argument --price: nan is not a price"),
        (["--price", "free"], "argument --price: free is not a price"),
        (["--prometheus", "http://127.0.0.1:1", "--since", "2100-01-01T00:00Z"], "not a time before now"),
    ],
)
def test_what_is_wrong_with_a_question_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the input and what to write."""
    try:
        code = main(["usage", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


@each_case(
    ("by", "complete", "message"),
    [
        ("job", True, ""),
        ("job", False, "the hours are too low: only the last 3 allocations could be read. Shorten --since"),
        ("user", True, ""),
        ("account", True, "no account can be read: run the command as root or in the agent's group"),
    ],
)
def test_what_a_sum_lacks_is_printed(by: str, complete: bool, message: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: FBT001 - a table
    """Allocations that are left out, and names that may not be read, are a warning on stderr with the remedy."""
    body = json.dumps({"allocations": USES, "complete": complete}).encode()
    with http_server(lambda _: (200, body)) as port:
        asked = ["usage", "--url", f"http://127.0.0.1:{port}", "--since", "2025-12-31T00:00Z", "--by", by, "--json"]
        assert main(asked) == 0
    printed = capsys.readouterr()
    assert sum(use["gpu_hours"] for use in json.loads(printed.out)) == 3.0
    assert message in printed.err
    assert bool(printed.err) == bool(message)


@each_case(
    ("answer", "message"),
    [
        ('{"data": {"result": []}}', f"has no series {HELD} since then"),
        ("<html>", "is not that of a Prometheus: 200 <html>"),
        ('{"data": {"result": [{"metric": {"user": "ann"}, "value": [0, "many"]}]}}', "is not that of a Prometheus"),
    ],
)
def test_an_answer_without_uses_is_an_error(answer: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No use of a fleet whose Prometheus has no rules, or is none, is printed as nothing."""
    with http_server(lambda _: (200, answer.encode())) as port:
        assert main(["usage", "--prometheus", f"http://127.0.0.1:{port}"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, message in printed.err) == ("", True)


def test_names_and_levels_of_a_strange_prometheus_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    """A level that is none and a value that is no number count nothing, and escape characters are not printed."""
    labels = {"user": "\x1b[31mann", "level": "idle"}
    results = [{"metric": labels, "value": [0, value]} for value in ("3600", "NaN")]
    body = json.dumps({"data": {"result": results}}).encode()
    with http_server(lambda _: (200, body)) as port:
        assert main(["usage", "--prometheus", f"http://127.0.0.1:{port}", "--by", "user", "--json"]) == 0
    [use] = json.loads(capsys.readouterr().out)
    assert use["name"] == "\N{REPLACEMENT CHARACTER}[31mann"
    assert (use["gpu_hours"], use["no_process_hours"], use["cold_hours"]) == (1.0, 0.0, 0.0)


HELD_HOURS = 4
OWNERS = {
    'user="ann",account="physics",job_id="slurm/77"': (2.0, 0.5, 1.5, 1000.0),
    'user="bob",account="physics",job_id="slurm/78"': (1.0, 1.0, 0.0, 700.0),
    'pod_namespace="ml",job_id="pod/ml/train"': (4.0, 3.0, 0.25, 2500.0),
    "": (1.0, 0.0, 1.0, 100.0),
}
"""GPUs held, busy and idle, and watts, by labels of the owner, on each of two nodes in the last HELD_HOURS hours."""


@pytest.fixture(scope="module")
def recorded_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a Prometheus that has recorded the uses of OWNERS."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "history").write_text("\n".join([*sorted(_history()), "# EOF\n"]), encoding="utf-8")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "history"), str(folder / "tsdb")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    write_yaml(folder / "prometheus.yml", {"scrape_configs": []})
    with prometheus(folder, port):
        eventually(lambda: query(port, f"last_over_time({HELD}[1h])"))
        yield f"http://127.0.0.1:{port}"


def _history() -> Iterator[str]:
    """Yield a sample each five minutes, with the labels of two nodes."""
    end = int(time.time()) // 300 * 300
    for at in range(end - int(HELD_HOURS * HOUR) + 300, end + 1, 300):
        for node in ("a", "b"):
            for owner, (held, busy, idle, watts) in OWNERS.items():
                labels = ",".join(filter(None, (f'instance="{node}",job="gpumon"', owner)))
                yield f"{HELD}{{{labels}}} {held} {at}"
                yield f"{BUSY}{{{labels}}} {busy} {at}"
                yield f'{IDLE_GPUS}{{{labels},level="no_kernel"}} {idle} {at}'
                yield f"{POWER}{{{labels}}} {watts} {at}"


FLEET_USES: dict[str, list[tuple[str, float, float, float, float]]] = {
    "user": [("ann", 16, 4, 12, 8), (NONE, 40, 24, 10, 20.8), ("bob", 8, 8, 0, 5.6)],
    "account": [("physics", 24, 12, 12, 13.6), (NONE, 40, 24, 10, 20.8)],
    "namespace": [(NONE, 32, 12, 20, 14.4), ("ml", 32, 24, 2, 20)],
    "job": [
        ("slurm/77", 16, 4, 12, 8),
        (NONE, 8, 0, 8, 0.8),
        ("pod/ml/train", 32, 24, 2, 20),
        ("slurm/78", 8, 8, 0, 5.6),
    ],
}
"""Name, GPU hours, busy and idle hours and kWh by kind."""


@pytest.mark.slow
@each_case("by", FLEET_USES)
def test_the_uses_of_a_fleet_are_added_up(by: str, recorded_fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The hours and energy of all nodes are added up by each kind of name, the most idle first, with the cost."""
    asked = ["usage", "--prometheus", recorded_fleet, "--since", "1d", "--by", by, "--price", "2.5", "--json"]
    assert main(asked) == 0
    uses = json.loads(capsys.readouterr().out)
    shown = [
        (use["name"], use["gpu_hours"], use["busy_hours"], use["no_kernel_hours"], round(use["kwh"], 6)) for use in uses
    ]
    assert shown == FLEET_USES[by]
    assert [use["cost"] for use in uses] == [2.5 * use["gpu_hours"] for use in uses]


@pytest.mark.slow
def test_only_the_time_asked_for_counts(recorded_fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last hour has twelve or thirteen windows of five minutes."""
    assert main(["usage", "--prometheus", recorded_fleet, "--since", "1h", "--by", "account", "--output", "csv"]) == 0
    physics = capsys.readouterr().out.splitlines()[1].split(",")
    assert physics[0] == "physics"
    assert 6 <= float(physics[1]) <= 6.5
