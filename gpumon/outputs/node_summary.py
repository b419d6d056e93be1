"""Sentences and numbers about the whole node for the status page and the terminal, from the response /api/v1/report."""

from __future__ import annotations

from gpumon.outputs.problems import NOT_EVALUATED
from gpumon.outputs.responses.base import Document

NOT_EVALUATED_TEXT = "Unknown: no check has run since the agent started."


def gpu_counts(document: Document) -> tuple[int, int]:
    """Return the number of GPUs that are up, and the number that should be up.

    That is the number of GPUs in the inventory, or of expected ones if greater, without excluded and released ones.
    """
    node, states = document["node"], [gpu["state"] for gpu in document["gpus"]]
    total = max(len(states), int(node["gpus_expected"] or 0) - len(node["excluded"]))
    return states.count("up"), total - states.count("released")


def unmonitored_counts(document: Document) -> list[str]:
    """Return a list with a phrase for the excluded GPUs and one for the released GPUs, such as `2 excluded`.

    Omit a phrase if its number is 0.
    """
    states = [gpu["state"] for gpu in document["gpus"]]
    counts = {"excluded": len(document["node"]["excluded"]), "released": states.count("released")}
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def exclusions(node: Document) -> list[str]:
    """Return a list with one sentence for each GPU that the configuration excludes."""
    return [f"GPU at {bus_id}: excluded by the configuration." for bus_id in node["excluded"]]


def headline(node: Document) -> str:
    """Return a sentence with the number of problems of the node, without those of severity info.

    If there are none and no check has run since the agent started, the sentence states that the state is unknown.
    """
    number = sum(problem["severity"] != "info" for problem in node["problems"])
    if not number:
        return NOT_EVALUATED_TEXT if node["state"] == NOT_EVALUATED else "No problems."
    return "1 problem." if number == 1 else f"{number} problems, worst first."
