"""`gpumon-sim fleet`: serve the HTTP pages of many simulated nodes, made from the pages of a few agents."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.types import Receive, Scope, Send

from gpumon.cli.client import Answer, Client, ClientError
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.clock import boot_clock
from gpumon.config.configuration_error import did_you_mean
from gpumon.server.listener import KEEP_ALIVE, ListenError, listen
from gpumon_sim.fleet_pages import AgentPage, NodeIdentities
from gpumon_sim.profiles import PROFILES
from gpumon_sim.source import problem

FAULTS = (
    "gpus: {0: {lost: true, xids: [79]}}",
    "gpus: {0: {xids: [48]}}",
    "gpus: {0: {remap: {uncorrectable: 1, failed: 1}}}",
    "gpus: {0: {set: {temperature: 95, utilization: 100}}}",
)
"""Scenarios of the broken nodes. With more than four broken nodes, several have the same scenario."""
START_SECONDS = 60.0
"""Maximum seconds from the start of an agent until it has polled its GPUs."""
FRESH_SECONDS = 1.0
"""Seconds for which a page of an agent is served from the cache."""
MAX_PAGES = 64
"""Maximum number of pages in an agent's cache. A full cache is emptied."""
MAX_PORT = 65535
FILES_PER_NODE = 4
"""Open files needed for each node: a listening socket, and the connections of two scrape jobs and a reader."""
OTHER_FILES = 200


DESCRIPTION = (
    "Serve N nodes from one agent for the healthy ones and one for each kind of fault. These are whole agents (polls, "
    "health checks, pages): values are live, verdicts real. Simplified: nodes of one agent have the same values and "
    "faults at the same time; each has its own name, port, GPU uuids and serial numbers. Responses are not "
    "compressed, and only GET is answered. The targets are printed in the format of file_sd_configs."
)


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon-sim fleet --nodes 100 --broken 3 --targets targets/fleet.json")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes")
    parser.add_argument("--profile", metavar="NAME", default="h100x8", help="profile of the nodes (h100x8)")
    parser.add_argument("--broken", type=int, metavar="K", default=0, help="the first K nodes have a fault (0)")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="the fault of all broken nodes")
    parser.add_argument("--listen-address", metavar="HOST:PORT", default="127.0.0.1:20000", help="address of node 1")
    parser.add_argument("--targets", type=Path, metavar="FILE", help="write the targets to this file")


class FleetNode(NamedTuple):
    """One node of the fleet: its name, the agent whose pages it serves, and the uuids and serial numbers to insert."""

    name: str
    agent: FleetAgent
    identities: NodeIdentities


class FleetAgent:
    """An agent process on a simulated node. All healthy nodes share one agent, as do all nodes with the same fault."""

    def __init__(self, folder: Path, profile: str, scenario: Path | None) -> None:
        self._client = Client(folder / "agent.sock")
        self.log = folder / "agent.log"
        paths = {
            "web.socket": "agent.sock",
            "store.path": "agent.db",
            "web.token-file": "token",
            "health.file": "health",
        }
        flags = [f"--{flag}={folder / name}" for flag, name in paths.items()]
        flags += ["--web.listen-address=127.0.0.1:0", f"--simulate={profile}"]
        flags += [f"--simulate.scenario={scenario.absolute()}"] if scenario else []
        # Only healthy nodes run the all-reduce, which loads two cores for half a minute.
        environment = os.environ | ({"GPUMON_PROBE__ENABLED": "false"} if scenario else {})
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "gpumon", "serve", *flags]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, stdout=log, env=environment)
        self._pages: dict[str, tuple[float, asyncio.Task[tuple[Answer, AgentPage]]]] = {}

    def wait(self) -> None:
        """Wait until the agent has polled its GPUs. Raise UserError if the agent ends or START_SECONDS pass before."""
        deadline = boot_clock() + START_SECONDS
        while self.process.poll() is None and boot_clock() < deadline:
            with contextlib.suppress(ClientError):
                if self._client.fetch("/-/ready").status == 200:
                    return
            time.sleep(0.1)
        raise UserError(f"an agent of the fleet did not start; its log ends with: {self.log.read_text()[-500:]}")

    async def page(self, path: str) -> tuple[Answer, AgentPage]:
        """Return the agent's response for this path, from the cache if it is fresh.

        Requests for the same path at the same time share one request to the agent.
        """
        fetched, task = self._pages.get(path, (0.0, None))
        now = boot_clock()
        if task is None or now - fetched > FRESH_SECONDS:
            task = asyncio.create_task(asyncio.to_thread(self._fetch, path))
            if len(self._pages) >= MAX_PAGES:
                self._pages.clear()
            self._pages[path] = now, task
        return await asyncio.shield(task)

    def _fetch(self, path: str) -> tuple[Answer, AgentPage]:
        answer = self._client.fetch(path)
        return answer, AgentPage(answer.body)


class Fleet:
    """ASGI application that serves each node of the fleet at a separate port. The first node has the lowest port."""

    def __init__(self, nodes: Sequence[FleetNode], first_port: int) -> None:
        self._nodes = nodes
        self._first_port = first_port

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        node = self._nodes[scope["server"][1] - self._first_port]
        status, content_type, body = 405, "text/plain", b"A simulated node answers GET requests only.\n"
        if scope["method"] in {"GET", "HEAD"}:
            query = scope["query_string"].decode()
            try:
                answer, page = await node.agent.page(scope["path"] + (f"?{query}" if query else ""))
                status, content_type, body = answer.status, answer.content_type, page.of_node(node.identities)
            except ClientError as error:
                status, body = 503, f"{error}\n".encode()
        headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def run(args: argparse.Namespace) -> int:
    """Serve the fleet until SIGINT or SIGTERM, then end its agents.

    SIGINT raises KeyboardInterrupt, and SIGTERM raises SystemExit(143). Raise UserError if the fleet cannot start.
    """
    _check(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the agents end
    host, _, port = args.listen_address.rpartition(":")
    sockets = _listen(host, int(port), args.nodes)
    with tempfile.TemporaryDirectory(prefix="gpumon-fleet-") as folder, _agents(Path(folder), args) as agents:
        names = [f"sim-{number:0{len(str(args.nodes))}}" for number in range(1, args.nodes + 1)]
        healthy, *broken = agents
        kinds = [broken[i % len(broken)] if i < args.broken else healthy for i in range(args.nodes)]
        nodes = [FleetNode(name, kinds[i], NodeIdentities(i, name)) for i, name in enumerate(names)]
        first = sockets[0].getsockname()[1]
        _write_targets(args.targets, {name: f"{host}:{first + i}" for i, name in enumerate(names)})
        config = uvicorn.Config(
            Fleet(nodes, first),
            lifespan="off",
            log_level="error",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UserError if the arguments of `gpumon-sim fleet` are invalid."""
    if args.nodes is None or args.nodes < 1:
        raise UserError("--nodes is missing: give the number of nodes, as in: gpumon-sim fleet --nodes 100")
    if not 0 <= args.broken <= args.nodes:
        raise UserError(f"--broken {args.broken} is not between 0 and --nodes {args.nodes}")
    if args.profile not in PROFILES:
        raise UserError(f"{args.profile!r} is no profile; {did_you_mean(args.profile, PROFILES)}")
    port = args.listen_address.rpartition(":")[2]
    if not port.isdecimal() or (int(port) == 0 and args.nodes > 1):
        raise UserError(f"--listen-address {args.listen_address!r} names no first port: write it as 127.0.0.1:20000")
    if int(port) + args.nodes - 1 > MAX_PORT:
        raise UserError(f"{args.nodes} nodes from port {port} on need ports above {MAX_PORT}: start at a lower port")
    if wrong := problem(args.profile, args.scenario):
        raise UserError(wrong)


def _listen(host: str, first_port: int, nodes: int) -> list[socket.socket]:
    """Return a listening socket for each node, at consecutive ports. Raise UserError if this is not possible."""
    wanted, (files, max_files) = OTHER_FILES + FILES_PER_NODE * nodes, resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_files != resource.RLIM_INFINITY and max_files < wanted:
        raise UserError(
            f"{nodes} nodes need {wanted} open files, and the limit is {max_files}: raise it with `ulimit -Hn`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, wanted), max_files))
    try:
        return [listen(host, port) for port in range(first_port, first_port + nodes)]
    except ListenError as error:
        raise UserError(f"{error}".replace("--web.listen-address", "--listen-address")) from error


@contextlib.contextmanager
def _agents(folder: Path, args: argparse.Namespace) -> Iterator[list[FleetAgent]]:
    """Run agents within a context. Yield a list of them: a healthy one, then one for each scenario of broken nodes."""
    faults = {} if args.scenario else {folder / f"{i}.yml": FAULTS[i] for i in range(min(args.broken, len(FAULTS)))}
    for path in faults:
        path.touch()
    scenarios = [None, *faults, *([args.scenario] if args.scenario and args.broken else [])]
    agents = []
    try:
        for number, path in enumerate(scenarios):
            (folder / f"{number}").mkdir()
            agents.append(FleetAgent(folder / f"{number}", args.profile, path))
        for agent in agents:
            agent.wait()
        for path, fault in faults.items():  # a GPU that is lost before its first poll has no uuid
            path.write_text(fault, encoding="utf-8")
        yield agents
    finally:
        for agent in agents:
            agent.process.terminate()
        for agent in agents:
            agent.process.wait()


def _write_targets(file: Path | None, addresses: Mapping[str, str]) -> None:
    """Write the address of each node, in the format of Prometheus's file_sd_configs, to the file or standard output."""
    groups = [{"targets": [address], "labels": {"instance": name}} for name, address in addresses.items()]
    text = json.dumps(groups, indent=0 if file is None else None) + "\n"
    if file is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    written = file.with_name(f".{file.name}.new")
    written.write_text(text, encoding="utf-8")
    written.rename(file)
