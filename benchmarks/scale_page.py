"""The page docs/scale.md: what one Prometheus needs for a fleet, measured and extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

INTERVAL, LINKS_INTERVAL = 15.0, 60.0
"""Scrape intervals of /metrics and /metrics/links in seconds. Rules are evaluated at the first."""
PAPER = (1000, 10_000)
GIB, MILLION = 1 << 30, 1e6
MAX_LOST = 0.001
"""Ratio of scrapes that may fail or be late before a step counts as lost."""
RULES_SHARE = 1 / 3
"""Share of the interval that the evaluation of the rules may take before the fleet is sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStep:
    """Measurement with one number of nodes."""

    nodes: int
    series: float
    samples: float
    """Samples a second, with those of the rules."""
    resident: float
    """Highest resident memory of Prometheus in bytes."""
    cores: float
    fleet_cores: float
    other_cores: float
    """Mean number of cores that other processes used."""
    scrape_p99: float
    """99th percentile of the duration of a scrape of /metrics in seconds."""
    lost: float
    """Ratio of scrapes that failed or did not take place."""
    rules: float
    """Seconds for one evaluation of all rules."""
    missed: float
    """Number of evaluations that did not take place."""
    board: tuple[float, ...]
    """Durations of the queries of the board in seconds, sorted."""

    def is_sustained(self) -> bool:
        """Return True if every evaluation and nearly every scrape took place."""
        return self.lost <= MAX_LOST and not self.missed

    @property
    def board_p95(self) -> float:
        return self.board[int(len(self.board) * 0.95)]

    def line(self) -> str:
        """Return the row of the table."""
        cells = (
            f"{self.nodes:,}",
            f"{self.series / MILLION:.2f} M",
            f"{self.samples:,.0f}",
            f"{self.resident / GIB:.1f} GiB",
            f"{self.resident / self.series * MILLION / GIB:.1f} GiB",
            f"{self.cores:.2f}",
            f"{self.scrape_p99 * 1e3:.0f} ms",
            f"{self.lost:.2%}",
            f"{self.rules:.2f} s",
            f"{self.missed:.0f}",
            f"{median(self.board) * 1e3:.0f}, {self.board_p95 * 1e3:.0f} ms",
            f"{self.fleet_cores:.2f}, {max(0.0, self.other_cores):.2f}",
        )
        return f"| {' | '.join(cells)} |"


COLUMNS = (
    "nodes",
    "series",
    "samples/s",
    "memory",
    "per million series",
    "cores",
    "scrape p99",
    "scrapes lost",
    "rules",
    "missed",
    "board p50, p95",
    "cores of fleet, others",
)


def page(steps: Sequence[ScaleStep], end: str, per_node: tuple[int, int], profile: str, cores: int) -> str:
    """Return the page. `per_node` are the series of a healthy node on /metrics and on /metrics/links.

    `end` is a sentence: why no larger fleet was measured.
    """
    return "\n".join(_lines(steps, end, per_node, profile, cores)) + "\n"


def _lines(steps: Sequence[ScaleStep], end: str, per_node: tuple[int, int], profile: str, cores: int) -> Iterator[str]:
    good = [step for step in steps if step.is_sustained()] or list(steps[:1])
    yield INTRODUCTION.format(cores=cores, profile=profile, metrics=per_node[0], links=per_node[1])
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    yield from (step.line() for step in steps)
    yield ""
    yield from _verdict(steps, good[-1], end)
    yield PAPER_HEAD
    yield "| nodes | | series | samples/s | memory | cores | rules |"
    yield f"|{' --- |' * 7}"
    for nodes in PAPER:
        for name, counted in (("both pages", per_node), ("without /metrics/links", (per_node[0], 0))):
            yield _paper(good, nodes, name, counted, per_node)
    yield ""
    yield ADVICE.format(
        times=round(3000 / per_node[0]),
        shard=_nodes_for(good[-1], 64 * GIB / 2),
        evaluation=RULES_SHARE * INTERVAL,
        rules_nodes=round(RULES_SHARE * INTERVAL / median(step.rules / step.nodes for step in good), -2),
    )


def _verdict(steps: Sequence[ScaleStep], best: ScaleStep, end: str) -> Iterator[str]:
    if steps[-1] is best:
        yield f"The largest fleet measured, {best.nodes:,} nodes, lost at most {MAX_LOST:.1%} of the scrapes and"
        yield f"no evaluation of the rules. {end}\n"
    else:
        yield f"The largest fleet without loss has {best.nodes:,} nodes; with {steps[-1].nodes:,} some were lost.\n"


def _paper(good: Sequence[ScaleStep], nodes: int, name: str, counted: tuple[int, int], both: tuple[int, int]) -> str:
    """Return a row of the extrapolation: memory from the largest step, cores and rules from the median step."""
    best = good[-1]
    series = nodes * sum(counted)
    samples = nodes * (counted[0] / INTERVAL + counted[1] / LINKS_INTERVAL)
    memory = best.resident / (best.nodes * sum(both)) * series
    of_node = both[0] / INTERVAL + both[1] / LINKS_INTERVAL
    used = median(step.cores / step.nodes for step in good) / of_node * samples
    cells = (
        f"{nodes:,}",
        name,
        f"{series / MILLION:.1f} M",
        f"{samples:,.0f}",
        f"{memory / GIB:.0f} GiB",
        f"{used:.1f}",
        f"{median(step.rules / step.nodes for step in good) * nodes:.1f} s",
    )
    return f"| {' | '.join(cells)} |"


def _nodes_for(best: ScaleStep, memory: float) -> int:
    """Return the number of nodes for which this memory suffices, in hundreds."""
    return int(memory / (best.resident / best.nodes) // 100 * 100)


INTRODUCTION = """\
# Prometheus for a fleet

<!-- Written by `make scale`, which measures it; text and extrapolation are in benchmarks/scale_page.py. -->

A `{profile}` node has {metrics} series on `/metrics` (every 15 s) and {links} on `/metrics/links` (every 60 s: each
NVLink, and port errors by kind). Rules use `/metrics` alone.

## Measured

One Prometheus 2.42 with the shipped scrape jobs and all rules at 15 s, on a virtual machine with {cores} cores that
also ran the simulated fleet and, as the last column shows, other programs, at a lower priority:

    make scale                                                                    # this page
    gpumon-sim fleet --nodes 1000 --broken 10 --targets targets/fleet.json   # the fleet alone

Nodes of the fleet share the values of a few agents, and pages are not compressed ([simulation.md](simulation.md)).
Memory is the highest within a minute, a few minutes after the start: it holds samples of minutes, not the two hours
that Prometheus keeps in memory. Rules is one evaluation of all groups. Board is a query of each panel of the shipped
dashboards over ten minutes, with all nodes selected.
"""
PAPER_HEAD = """\
## On paper

Memory in proportion to the largest fleet without loss; cores and rules to the median of the steps, because other
programs delayed some evaluations. Memory holds samples of minutes: for two hours of them, queries and a restart,
provide twice as much. Not measured: disk, and queries over days.
"""
ADVICE = """\
## When to shard

- By memory: a Prometheus with 64 GiB, half of it left for samples, queries and restarts, has room for
  {shard:,} nodes.
- By rules: above {rules_nodes:,.0f} nodes one evaluation would take more than {evaluation:.0f} of the 15 s.
- Below both limits one Prometheus is simpler: fleet rules compare nodes, and a shard sees only its own.
- Shard by cluster or rack, so that nodes that are compared are in one Prometheus. Set a label `cluster` in
  `external_labels`, and query all shards with Thanos or Mimir, or federate the `cluster:` series alone.
- First drop the job gpumon-links, or scrape it only where links are investigated: nothing that pages needs it.

`sample_limit` rejects a page as a whole: a fuse, not a quota. The shipped 3,000 for `/metrics` is {times} times a
healthy node; the 10,000 for `/metrics/links` covers every profile. `gpumon_exposed_series` is the present number on
`/metrics`; `metrics.detailed` adds half as many again. Faults add some: six different Xids on each GPU of an h100x8
add about 110 series.
"""
