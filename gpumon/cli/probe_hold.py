"""`gpumon probe hold` and `unhold`: keep probes away from the GPUs while somebody is about to use them.

For a scheduler's prolog: exit code 0 means that nothing of ours is on a GPU, nor comes there before the hold has ended;
1 that this is not certain; 2 that nothing was asked, or it was refused.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpumon.cli import offline_hold
from gpumon.cli.client import Client, ClientError, NoAgentError, RefusedError
from gpumon.cli.config_arguments import find_agent
from gpumon.cli.duration_arguments import read_below_zero
from gpumon.cli.errors import UserError
from gpumon.config.model import Configuration
from gpumon.model import durations
from gpumon.model.time_window import owner_problem, reason_problem
from gpumon.outputs.window_sentences import holds

PATH, MEMBERS = "/api/v1/probes/hold", ("hold",)
CHANGED = (*MEMBERS, "stored")
TTL = "15m"
PATIENCE_SECONDS = 5.0
"""For an agent that answers, starts or stops: it has 3 s to let go of the GPUs."""
AGAIN_SECONDS = 0.1
UNCERTAIN = 1
NOBODY = "Nobody keeps probes away."
FREE = "Nothing of a run is on a GPU."
UNSTORED = "It is not on disk: the store cannot be written now. An agent that starts before it can be does not know it."


def add(parser: argparse.ArgumentParser) -> None:
    read_below_zero(parser)
    parser.add_argument("--ttl", metavar="DURATION", help=f"of hold: when it ends by itself; {TTL} unless given")
    parser.add_argument("--owner", help="of hold and unhold: for whom, such as the number of a job; each has one hold")
    parser.add_argument("--reason", help="of hold: why, in a few words that everybody may read")


def check(chosen: argparse.Namespace) -> None:
    """Raise UserError for arguments that the agent would refuse or that have no meaning here."""
    if chosen.name != "hold" and (chosen.ttl or chosen.reason):
        raise UserError("--ttl and --reason go with hold: gpumon probe hold --ttl 15m")
    if chosen.name not in ACTIONS and chosen.owner is not None:
        raise UserError("--owner goes with hold and unhold: gpumon probe hold --owner 4711")
    wrong = reason_problem(chosen.reason or "") or owner_problem(chosen.owner or "")
    if wrong:
        raise UserError(f"{wrong} Say it in a few words.")


def begin(chosen: argparse.Namespace) -> int:
    """Answers when nothing of a run is left."""
    seconds = durations.seconds(chosen.ttl or TTL)
    if not seconds:
        raise UserError(f"{chosen.ttl!r} is no duration: give it as 30s, 15m or 2h")
    wanted = {"for_seconds": seconds, "reason": chosen.reason or "", "owner": chosen.owner or ""}
    return _changed(
        chosen,
        lambda agent: agent.post(f"{PATH}?{urlencode(wanted)}", CHANGED),
        lambda settings, store: offline_hold.hold(
            store, seconds, chosen.reason or "", chosen.owner or "", max_seconds=settings.probe.max_hold_seconds
        ),
        FREE,
    )


def end(chosen: argparse.Namespace) -> int:
    owner = chosen.owner or ""
    return _changed(
        chosen,
        lambda agent: agent.change("DELETE", f"{PATH}?{urlencode({'owner': owner})}", CHANGED),
        lambda _, store: offline_hold.unhold(store, owner),
        "",
    )


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {"hold": begin, "unhold": end}


def _changed(
    chosen: argparse.Namespace,
    ask: Callable[[Client], Any],
    alone: Callable[[Configuration, Path], offline_hold.Done],
    well: str,
) -> int:
    """`ask` the agent; where none runs, do it `alone`."""
    agent, settings, store = find_agent(chosen)
    try:
        done = _asked_or_alone(replace(agent, timeout=PATIENCE_SECONDS), ask, lambda: alone(settings, store))
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT:
            raise UserError(str(refusal)) from refusal
        done = offline_hold.Done(refusal.problem, str(refusal), certain=False)
    except ClientError as error:
        done = offline_hold.Done({}, str(error), certain=False)
    if not done.certain:
        print(f"gpumon: {done.words}", file=sys.stderr)
    elif chosen.json:
        print(json.dumps(done.document, indent=2))
    else:
        asked = "" if done.document["stored"] else UNSTORED
        lines = (*(holds(done.document["hold"]) or [NOBODY]), *([done.words] if done.words else [well, asked]))
        print(*filter(None, lines), sep="\n")
    return 0 if done.certain else UNCERTAIN


def _asked_or_alone(
    agent: Client, ask: Callable[[Client], Any], alone: Callable[[], offline_hold.Done]
) -> offline_hold.Done:
    """Try again while an agent starts or ends, until none uses the store."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            agent.get(PATH, MEMBERS)  # asks for no token, which a host without an agent need not have
            return offline_hold.Done(ask(agent), "")
        except NoAgentError as absent:
            try:
                return alone()
            except offline_hold.InUse as error:
                if time.monotonic() > deadline:
                    raise ClientError(f"{error}; {absent}") from error
        time.sleep(AGAIN_SECONDS)
