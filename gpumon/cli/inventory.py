"""`gpumon inventory`: GPUs and ports that should be here; `gpumon inventory accept`: those that are here are all."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, Refused
from gpumon.cli.config_arguments import add_flags, client, configuration
from gpumon.cli.errors import UserError
from gpumon.cli.fitness import stored_health
from gpumon.cli.fitness.node_health import Unknowable
from gpumon.outputs.inventory_table import render_inventory
from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.store import boards, ports

PATH, MEMBERS = "/api/v1/inventory", ("source", "gpus", "ports", "gone")
WAIT_SECONDS = 30.0
"""Longer than the agent waits for its store."""
ACCEPT = "accept"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=(ACCEPT,),
        help="GPUs and ports that are missing or down are expected no more, and ports no faster than now",
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="of accept: only this GPU (uuid or PCI address) or port (mlx5_3/1)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    agent = replace(client(chosen), timeout=WAIT_SECONDS)
    found = _accepted(agent, chosen.parts) if chosen.what == ACCEPT else _known(agent, chosen)
    print(json.dumps(found, indent=2) if chosen.json else render_inventory(found))
    return 0


def _accepted(agent: Client, parts: Sequence[str]) -> Any:
    query = f"?{urlencode({'part': parts}, doseq=True)}" if parts else ""
    try:
        return agent.post(f"{PATH}/accept{query}", MEMBERS)
    except ClientError as error:
        raise UserError(str(error)) from error


def _known(agent: Client, chosen: argparse.Namespace) -> Any:
    """What the agent says; if it says nothing, what its store holds."""
    try:
        return agent.get(PATH, MEMBERS)
    except Refused as refusal:
        raise UserError(str(refusal)) from refusal
    except ClientError as silence:
        try:
            return stored_health.inquire(
                str(configuration(chosen).store.path),
                lambda store: InventoryResponse.from_store(
                    boards.every(store), boards.accepted(store), ports.every(store)
                ),
            ).document()
        except Unknowable as error:
            raise UserError(f"{silence} Nor can its store be read: {error}") from error
