"""docs/scale.md: the measured table, and the extrapolation from it."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.scale_page import GIB, ScaleStep, page

STEP = ScaleStep(
    nodes=1000,
    series=1.6e6,
    samples=64_000.0,
    resident=5.0 * GIB,
    cores=0.5,
    fleet_cores=0.3,
    other_cores=0.1,
    scrape_p99=0.02,
    lost=0.0,
    rules=1.5,
    missed=0.0,
    board=tuple(number / 100 for number in range(100)),
)


def test_paper_is_in_proportion_to_the_largest_fleet_without_loss() -> None:
    """Ten times the nodes have ten times the series, memory and rule time of the step; a lossy step is left out."""
    lossy = replace(STEP, nodes=2000, lost=0.2, resident=99.0 * GIB)
    text = page([STEP, lossy], "", (750, 850), "h100x8", 2)
    assert "The largest fleet without loss has 1,000 nodes; with 2,000 some were lost." in text
    assert "| 10,000 | both pages | 16.0 M | 641,667 | 50 GiB | 5.0 | 15.0 s |" in text
    assert "| 10,000 | without /metrics/links | 7.5 M | 500,000 | 23 GiB | 3.9 | 15.0 s |" in text
    assert "6,400 nodes" in text
    assert "above 3,300 nodes" in text


def test_cores_of_other_processes_are_not_negative() -> None:
    """Rounding errors of the difference between the machine's cores and the measured ones are shown as 0."""
    assert replace(STEP, other_cores=-0.001).line().endswith("| 0.30, 0.00 |")


def test_a_run_without_loss_states_why_it_ended() -> None:
    """If no step lost anything, the page states why no larger fleet was measured, not that it found the limit."""
    text = page([STEP], "With 2,000, it ended.", (750, 850), "h100x8", 2)
    assert "The largest fleet measured, 1,000 nodes, lost at most 0.1% of the scrapes" in text
    assert "no evaluation of the rules. With 2,000, it ended." in text
