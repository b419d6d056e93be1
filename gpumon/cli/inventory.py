"""`gpumon inventory`: show the expected GPUs and ports; `gpumon inventory accept`: expect only those present."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, RefusedError
from gpumon.cli.config_arguments import add_client_flags, find_agent
from gpumon.cli.errors import UserError
from gpumon.outputs.inventory_table import render_inventory
from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.store import gpus, ports
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

PATH, MEMBERS = "/api/v1/inventory", ("source", "gpus", "ports", "former_gpus")
WAIT_SECONDS = 30.0
"""More than the agent waits for its store."""
ACCEPT = "accept"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=(ACCEPT,),
        help="stop expecting GPUs and ports that are missing or down, and ports to be faster than now",
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="with accept: only this GPU (uuid or PCI address) or port (mlx5_3/1)"
    )
    parser.add_argument("--json", action="store_true", help="print the response as JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    agent, _, store = find_agent(args)
    agent = replace(agent, timeout=WAIT_SECONDS)
    document = _accept(agent, args.parts) if args.what == ACCEPT else _inventory(agent, store)
    print(json.dumps(document, indent=2) if args.json else render_inventory(document))
    return 0


def _accept(agent: Client, parts: Sequence[str]) -> Any:
    query = f"?{urlencode({'part': parts}, doseq=True)}" if parts else ""
    return agent.post(f"{PATH}/accept{query}", MEMBERS)


def _inventory(agent: Client, path: Path) -> Any:
    """Return the inventory of the agent, or of its store if it does not answer. Raises UserError."""
    try:
        return agent.get(PATH, MEMBERS)
    except RefusedError:
        raise
    except ClientError as silence:
        try:
            with Store.open_copy(path) as store, store.reading() as connection:
                return InventoryResponse.from_store(
                    gpus.read(connection), gpus.accepted_count(connection), ports.read(connection)
                ).document()
        except StoreError as error:
            raise UserError(f"{silence} Its store cannot be read either: {error}") from error
