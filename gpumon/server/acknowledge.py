"""/api/v1/health/ack: a person clears what is latched and not so now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.health.acknowledge import Acknowledged, Asked
from gpumon.health.table import BY_NAME
from gpumon.outputs import health as health_document
from gpumon.server import parameters, schema_health
from gpumon.server.api import Filter
from gpumon.server.guard import authorize
from gpumon.server.problem import Problem
from gpumon.server.responses import awaited, reply, sources
from gpumon.state.report import Report

router = APIRouter(prefix="/api/v1", tags=["node"])

PATIENCE = 20.0
"""Seconds for the main loop to say what becomes of a request: longer than it waits for the store."""
LONGEST_NOTE = 500


class Which(Filter):
    check: str | None = Field(None, description="Only verdicts of this check.")
    gpu: str | None = Field(None, description="Only of this GPU: uuid, index or PCI address.")
    device: str | None = Field(None, description="Only of this device, as its verdict names it.")
    note: str = Field("", max_length=LONGEST_NOTE, description="Words for the record: what was found or done.")
    every: bool = Field(
        default=False, alias="all", description="All that can be, where neither check nor device is given."
    )


@router.post(
    "/health/ack",
    response_model=schema_health.Acknowledged,
    summary="Acknowledge verdicts",
    responses={
        400: {"description": "Neither a check nor a device, nor `all`."},
        401: {"description": "No token, or a wrong one."},
        403: {"description": "A page of another origin asked."},
        404: {"description": "No such verdict; `verdicts` names those that there are."},
        409: {"description": "It is still so; `kept` says which, and what to do."},
        503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
    },
    openapi_extra={"security": [{"token": []}]},
)
async def acknowledge(request: Request, which: Annotated[Which, Query()]) -> Response:
    """Needs the token. Answers when it is stored. What is so now cannot be acknowledged, and ends by itself."""
    authorize(request)
    report = sources(request).latest()
    asked = _asked(which, report)
    answer = await awaited(sources(request).acknowledge(asked), PATIENCE)
    if answer.trouble:
        raise Problem(503, "Not acknowledged", answer.trouble, "Ask again in ten seconds.")
    if not answer.cleared and answer.kept:
        raise still_so(answer, report)
    if not answer.cleared and not which.every:
        raise unknown(asked, report)
    return reply(told(answer, report))


def _asked(which: Which, report: Report) -> Asked:
    if which.gpu is not None and which.device is not None:
        raise Problem(400, "Invalid parameter", "gpu and device are both given.", "Give one of them.")
    device = which.device if which.gpu is None else parameters.gpu(report, which.gpu).uuid
    if which.every == (which.check is not None or device is not None):
        raise unclear(both=which.every)
    note = " ".join("".join(one if one.isprintable() else " " for one in which.note).split())
    return Asked(check=which.check, device=device, note=note)


def unclear(*, both: bool) -> Problem:
    detail = "all is given beside a check or a device." if both else "Nothing says which verdicts."
    return Problem(400, "Invalid parameter", detail, "Give check=NAME, gpu=GPU or device=NAME; or all=true alone.")


def unknown(asked: Asked, report: Report) -> Problem:
    known = [health_document.verdict(one, report) for one in report.health.verdicts]
    strange = asked.check is not None and asked.check not in BY_NAME
    named = {"check": asked.check, "device": asked.device}
    wanted = " and ".join(f"of {what} {value!r}" for what, value in named.items() if value)
    return Problem(
        404,
        "Unknown check" if strange else "No such verdict",
        f"There is no check {asked.check!r}." if strange else f"There is no verdict {wanted}.",
        f"There are: {'; '.join(map(health_document.name, known))}." if known else "The node has no verdict at all.",
        verdicts=known,
    )


def still_so(answer: Acknowledged, report: Report) -> Problem:
    kept = _kept(answer, report)
    words = " ".join(f"{health_document.name(one)}: {one['reason']} {one['why']}" for one in kept)
    actions = dict.fromkeys(one["action_words"] for one in kept)
    return Problem(
        409,
        "Still so",
        words,
        f"To do: {'; '.join(actions)}. To have it not page meanwhile: gpumon maintenance.",
        kept=kept,
    )


def _kept(answer: Acknowledged, report: Report) -> list[health_document.Document]:
    return [health_document.verdict(one, report) | {"why": why} for one, why in answer.kept]


def told(answer: Acknowledged, report: Report) -> health_document.Document:
    """What was cleared, and what was not."""
    return {
        "acknowledged": [health_document.verdict(one, report) for one in answer.cleared],
        "kept": _kept(answer, report),
        "stored": answer.stored,
    }
