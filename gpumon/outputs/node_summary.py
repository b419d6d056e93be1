"""Sentences and numbers about the whole node for the status page and the terminal, from the response /api/v1/report."""

from __future__ import annotations

from gpumon.outputs.problems import NOT_EVALUATED
from gpumon.outputs.responses.base import Document

NOT_EVALUATED_TEXT = "Unknown: no check has run since the agent started."


def gpu_counts(document: Document) -> tuple[int, int]:
    """Return the number of GPUs that are up, and the number that should be, without excluded and released GPUs."""
    node, states = document["node"], [gpu["state"] for gpu in document["gpus"]]
    total = max(len(states), int(node["gpus_expected"] or 0) - len(node["excluded"]))
    return states.count("up"), total - states.count("released")


def unmonitored_counts(document: Document) -> list[str]:
    """Return the number of excluded GPUs and of released GPUs as phrases, such as `2 excluded`. Omit numbers of 0."""
    states = [gpu["state"] for gpu in document["gpus"]]
    counts = {"excluded": len(document["node"]["excluded"]), "released": states.count("released")}
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def exclusions(node: Document) -> list[str]:
    """Return a sentence for each GPU that the configuration excludes."""
    return [f"GPU at {bus_id}: excluded by the configuration." for bus_id in node["excluded"]]


def headline(node: Document) -> str:
    """Return a sentence with the number of problems of the node. Problems of severity info do not count."""
    number = sum(problem["severity"] != "info" for problem in node["problems"])
    if not number:
        return NOT_EVALUATED_TEXT if node["state"] == NOT_EVALUATED else "No problems."
    return "1 problem." if number == 1 else f"{number} problems, worst first."
