"""`gpumon inventory`: GPUs and ports that should be here; `gpumon inventory accept`: those that are here are all."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, Refused
from gpumon.cli.config_arguments import add_flags, meant
from gpumon.cli.errors import UserError
from gpumon.outputs.inventory_table import render_inventory
from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.store.errors import StoreError
from gpumon.store.store import Store

PATH, MEMBERS = "/api/v1/inventory", ("source", "gpus", "ports", "former_gpus")
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
    agent, _, store = meant(chosen)
    agent = replace(agent, timeout=WAIT_SECONDS)
    found = _accepted(agent, chosen.parts) if chosen.what == ACCEPT else _known(agent, store)
    print(json.dumps(found, indent=2) if chosen.json else render_inventory(found))
    return 0


def _accepted(agent: Client, parts: Sequence[str]) -> Any:
    query = f"?{urlencode({'part': parts}, doseq=True)}" if parts else ""
    try:
        return agent.post(f"{PATH}/accept{query}", MEMBERS)
    except ClientError as error:
        raise UserError(str(error)) from error


def _known(agent: Client, path: Path) -> Any:
    """What the agent says; if it says nothing, what its store holds."""
    try:
        return agent.get(PATH, MEMBERS)
    except Refused as refusal:
        raise UserError(str(refusal)) from refusal
    except ClientError as silence:
        try:
            with Store.open_copy(path) as store:
                return InventoryResponse.from_store(store.boards(), store.accepted(), store.ports()).document()
        except StoreError as error:
            raise UserError(f"{silence} Its store cannot be read either: {error}") from error
