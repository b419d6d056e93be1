"""Sentences about the node as a whole, from its response: for the page and the terminal."""

from __future__ import annotations

from gpumon.outputs.problems import NOT_EVALUATED
from gpumon.outputs.responses.base import Document

NOT_EVALUATED_TEXT = "Unknown: no check has run since the agent started."


def gpu_counts(document: Document) -> tuple[int, int]:
    """Return how many GPUs are up, and how many should be. Excluded and released GPUs are not counted."""
    node, states = document["node"], [gpu["state"] for gpu in document["gpus"]]
    total = max(len(states), int(node["gpus_expected"] or 0) - len(node["excluded"]))
    return states.count("up"), total - states.count("released")


def unmonitored_counts(document: Document) -> list[str]:
    """Return how many GPUs are not monitored, by reason; an empty list if there are none."""
    states = [gpu["state"] for gpu in document["gpus"]]
    counts = {"excluded": len(document["node"]["excluded"]), "released": states.count("released")}
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def exclusions(node: Document) -> list[str]:
    """Return a sentence for each GPU that the configuration excludes."""
    return [f"GPU at {bus_id}: excluded by the configuration." for bus_id in node["excluded"]]


def headline(node: Document) -> str:
    """Return the number of problems in a sentence. Problems of severity info do not count."""
    number = sum(problem["severity"] != "info" for problem in node["problems"])
    if not number:
        return NOT_EVALUATED_TEXT if node["state"] == NOT_EVALUATED else "No problems."
    return "1 problem." if number == 1 else f"{number} problems, worst first."
