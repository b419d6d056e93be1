"""Results and cost of the probe beside a plain torch.distributed script on the same machine, run alternately."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import AgentProcess, eventually, free_port

from gpumon.clock import boot_clock

RUNS = 20
POLL_SECONDS = 0.5
"""Pause between two requests for the result: requests take CPU time from the ranks."""
RANKS = 2
BARE = Path(__file__).with_name("bare_all_reduce.py")


@dataclass(frozen=True)
class ProbeTiming:
    """One run of the probe or of the plain script."""

    seconds: float
    """Time from the request or the start to the result."""
    busbw: dict[int, float]
    """Bytes per second by size in bytes."""


def run_probe(agent: AgentProcess) -> ProbeTiming:
    began = boot_clock()
    status, answer = agent.post("/probe/allreduce")
    if status != 202:
        raise RuntimeError(f"no run: {answer}")
    result = await_result(agent, answer["id"])
    seconds = boot_clock() - began
    if result["outcome"] != "ok":
        raise RuntimeError(f"a run that was not ok: {result}")
    return ProbeTiming(seconds, {each["bytes"]: each["busbw_bytes_per_second"] for each in result["measurements"]})


def await_result(agent: AgentProcess, run: str) -> Any:
    while True:
        status, body = agent.ask(f"/api/v1/probes/{run}")
        if status == 200:
            return json.loads(body)
        time.sleep(POLL_SECONDS)


def bare(sizes: Sequence[int]) -> ProbeTiming:
    began = boot_clock()
    ranks = [start_bare(rank, port, sizes) for port in (free_port(),) for rank in range(RANKS)]
    printed = [rank.communicate(timeout=300) for rank in ranks]
    seconds = boot_clock() - began
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"the bare script failed: {printed}")
    return ProbeTiming(seconds, {int(size): busbw for size, busbw in json.loads(printed[0][0]).items()})


def start_bare(rank: int, port: int, sizes: Sequence[int]) -> subprocess.Popen[str]:
    rendezvous = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    alike = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(BARE), *map(str, sizes)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Use a separate session, as the agent's ranks do: the kernel's scheduler divides CPU time by session.
    return subprocess.Popen(command, env=os.environ | rendezvous | alike, start_new_session=True, **pipes)


def measure(agent: AgentProcess) -> Iterator[tuple[str, str]]:
    sizes = sorted(run_probe(agent).busbw)
    ours, bares = list[ProbeTiming](), list[ProbeTiming]()
    for number in range(RUNS):  # alternately in this and the other order
        if number % 2:
            bares.append(bare(sizes))
        ours.append(run_probe(agent))
        if not number % 2:
            bares.append(bare(sizes))
    for size in sizes:
        here, there = (statistics.median(run.busbw[size] for run in kind) for kind in (ours, bares))
        words = f"{here / 1e9:.3f} GB/s, bare {there / 1e9:.3f} GB/s: {here / there - 1:+.1%}"
        yield f"busbw, {size >> 10} KiB", words + "   aim within 3 %"
    whole, bare_whole = (statistics.median(run.seconds for run in kind) for kind in (ours, bares))
    yield "whole time", f"{whole:.2f} s, bare {bare_whole:.2f} s: {whole / bare_whole:.2f}"


def main() -> None:
    print(f"\nThe probe, {RANKS} ranks over gloo, and a plain script, alternately; medians of {RUNS} runs each")
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "gpumon.yml"
        configuration.write_text(json.dumps({"probe": {"initial_delay_seconds": 86400}}), encoding="utf-8")
        agent = AgentProcess(Path(folder))
        agent.simulate({"idle": True})
        agent.start(f"--config.file={configuration}")
        try:
            eventually(lambda: agent.metrics().value("gpumon_store_up") == 1)
            for name, figure in measure(agent):
                print(f"  {name:32}{figure}", flush=True)
        finally:
            agent.stop()


if __name__ == "__main__":
    main()
