"""`gpumon sd`: scrape targets from node names, host lists and inventories."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from agents import eventually, running
from each_case import each_case

from gpumon.cli.command_parser import UserError
from gpumon.cli.main import main
from gpumon.fleet.sd import expand

EXPRESSIONS = [
    ("gpu[001-003,040]", "gpu001 gpu002 gpu003 gpu040"),
    ("rack[1-2]gpu[9-10]", "rack1gpu9 rack1gpu10 rack2gpu9 rack2gpu10"),
    ("gpu[09-10].cluster.example, login", "gpu09.cluster.example gpu10.cluster.example login"),
    ("a,b\nc", "a b c"),
    ("[2001:db8::1]:9000 [2001:db8::1]", "[2001:db8::1]:9000 [2001:db8::1]"),
    ("", ""),
]
INVALID = ["gpu[0-99999][0-99999]", "gpu[1-", "gpu[3-1]", "gpu[]", "gpu[a]", "gpu[1-999999999]", "gpu]1", "g[1[2]]"]
LIST = """\
# one host with an address
login
gpu[01-02] rack=r1
gpu03 ansible_host=10.0.0.3 rack="r 2"  # moved
"""
JSON = {
    "_meta": {
        "hostvars": {
            "gpu01": {"rack": "r1"},
            "gpu02": {"rack": "r1"},
            "gpu03": {"ansible_host": "10.0.0.3", "rack": "r 2"},
            "login": {"ansible_host": None, "rack": None},
        }
    },
    "all": {"children": ["ungrouped", "cluster"]},
    "cluster": {"children": ["gpu"]},
    "gpu": {"hosts": ["gpu01", "gpu02", "gpu03"]},
    "ungrouped": {"hosts": ["login"]},
}


@each_case("expression, names", EXPRESSIONS)
def test_node_names_are_expanded_as_slurm_does(expression: str, names: str) -> None:
    """Ranges keep their zeros, and several brackets multiply."""
    assert expand(expression) == names.split()


@each_case("expression", INVALID)
def test_an_invalid_expression_is_an_error_with_the_remedy(expression: str) -> None:
    """Also a range that names too many hosts, before they fill the memory."""
    with pytest.raises(UserError, match=r"write it as gpu\[001-032,040\]|check its ranges"):
        expand(expression)


def targets(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["sd", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_targets_have_port_and_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts with the same labels are one group; a host with a port keeps it, an address of IPv6 too."""
    [addresses] = targets(capsys, "[2001:db8::1]:9000", "[2001:db8::2]", "--port", "17400")
    assert addresses["targets"] == ["[2001:db8::1]:9000", "[2001:db8::2]:17400"]
    assert targets(capsys, "gpu[1-2],other:9400", "--label", "cluster=east", "--port", "17400") == [
        {"targets": ["gpu1:17400", "gpu2:17400", "other:9400"], "labels": {"cluster": "east"}}
    ]


def test_an_inventory_has_targets_with_the_variables_of_their_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group has the hosts of its groups; an address replaces the name, which stays in `instance`."""
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps(JSON))
    gpus = [
        {"targets": ["gpu01:17400", "gpu02:17400"], "labels": {"rack": "r1"}},
        {"targets": ["10.0.0.3:17400"], "labels": {"rack": "r 2", "instance": "gpu03:17400"}},
    ]
    assert targets(capsys, "--hosts", str(path), "--group", "cluster", "--label-from", "rack") == gpus
    everything = targets(capsys, "--hosts", str(path))
    addresses = [*("10.0.0.3:17400", "gpu01:17400", "gpu02:17400", "login:17400")]
    assert sorted(target for group in everything for target in group["targets"]) == addresses
    path.write_text(LIST)
    assert targets(capsys, "--hosts", str(path)) == [
        {"targets": ["login:17400", "gpu01:17400", "gpu02:17400"], "labels": {}},
        {"targets": ["10.0.0.3:17400"], "labels": {"instance": "gpu03:17400"}},
    ]


@each_case(
    "arguments, error",
    [
        ([], "give either node names"),
        (["gpu1", "--hosts", "x"], "give either node names"),
        (["--hosts", "/none"], "cannot read /none"),
        (["--hosts", "LIST", "--group", "gpus"], "there is no group 'gpus', but: all"),
        (["--hosts", "LIST", "--label-from", "rack"], "host login has no variable 'rack'"),
        (["--hosts", "INI"], "use ansible-inventory --inventory FILE --list > hosts.json"),
        (["--hosts", "COMMENT"], "use ansible-inventory --inventory FILE --list > hosts.json"),
        (["--hosts", "YAML"], "use ansible-inventory --inventory FILE --list > hosts.json"),
        (["--hosts", "NULL", "--label-from", "rack"], "host gpu1 has no variable 'rack'"),
        (["http://gpu1"], "'http://gpu1' is not the address of a host"),
        (["--hosts", "TEMPLATE"], "'{{ ip }}' is not the address of a host: write its name or IP address"),
        (["gpu1", "--label", "1=2"], "'1=2' is not a label: write it as cluster=east"),
        (["gpu1", "--listen", "127.0.0.1:http"], "cannot listen at '127.0.0.1:http'"),
        (["--hosts", "DEEP"], "cannot read "),
        (["--hosts", "EMPTY"], "there is no host in "),
    ],
)
def test_an_error_names_the_input(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed for Prometheus."""
    texts = {
        "LIST": LIST,
        "INI": "login\n[gpu:vars]\nrack=r1\n",
        "COMMENT": "[gpu_nodes] # x\ngpu1\n",
        "NULL": json.dumps({"_meta": {"hostvars": {"gpu1": {"rack": None}}}, "all": {"hosts": ["gpu1"]}}),
        "YAML": "---\nall:\n  hosts:\n    login:\n",
        "DEEP": '{"all": ' + "[" * 100_000,
        "EMPTY": "# none\n",
        "TEMPLATE": 'gpu1 ansible_host="{{ ip }}"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    arguments = [str(tmp_path / word) if word in texts else word for word in arguments]
    assert main(["sd", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, error in printed.err) == ("", True), printed.err


def test_http_sd_serves_the_present_file(tmp_path: Path) -> None:
    """A changed file is served without a restart; while it is invalid the status is an error, as http_sd requires."""
    hosts, log = tmp_path / "hosts", tmp_path / "log"
    hosts.write_text("gpu[1-2]\n")
    command = [sys.executable, "-m", "gpumon", "sd", "--hosts", str(hosts), "--listen", "127.0.0.1:0"]
    with running(command, log):
        started = eventually(lambda: re.search(r"http://\S+", log.read_text()))
        with urllib.request.urlopen(started[0], timeout=30) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert json.load(answer) == [{"targets": ["gpu1:17400", "gpu2:17400"], "labels": {}}]
        hosts.write_text("gpu3\n")
        with urllib.request.urlopen(started[0], timeout=30) as answer:
            assert json.load(answer) == [{"targets": ["gpu3:17400"], "labels": {}}]
        hosts.write_text("gpu[1\n")
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(started[0], timeout=30)


def test_http_sd_listens_on_ipv6(tmp_path: Path) -> None:
    """The address is in brackets, also in the URL that is printed."""
    command = [sys.executable, "-m", "gpumon", "sd", "gpu1", "--listen", "[::1]:0"]
    with running(command, tmp_path / "log"):
        started = eventually(lambda: re.search(r"http://\[::1\]:\d+/", (tmp_path / "log").read_text()))
        with urllib.request.urlopen(started[0], timeout=30) as answer:
            assert json.load(answer) == [{"targets": ["gpu1:17400"], "labels": {}}]


def test_standard_input_is_a_host_list() -> None:
    """As `sinfo --noheader --format %N` prints it."""
    command = [sys.executable, "-m", "gpumon", "sd", "--hosts", "-"]
    ran = subprocess.run(command, input="gpu[1-2],gpu5\n", capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(ran.stdout) == [{"targets": ["gpu1:17400", "gpu2:17400", "gpu5:17400"], "labels": {}}]
