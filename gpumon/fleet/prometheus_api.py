"""The HTTP API of a Prometheus. Its answers are not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that an invalid address, or a response of another program, raises."""


def instant(client: Client, prefix: str, query: str) -> list[tuple[Mapping[str, str], float]]:
    """Return labels and value of each result of a query now, from a Prometheus whose paths begin with `prefix`.

    Raise ClientError if it does not answer.
    """
    result = get_json(client, f"{prefix}/api/v1/query?{urlencode({'query': query})}", "data", "result")
    try:
        pairs = [({**each["metric"]}, float(each["value"][1])) for each in result]
        return [({name: str(text) for name, text in labels.items()}, value) for labels, value in pairs]
    except MALFORMED as error:
        raise ClientError(f"the answer to the query {query} is not that of a Prometheus: {error!r}") from error


def get_json(client: Client, path: str, *members: str) -> Any:
    """Return the JSON value of a response, at a path of `members`. Raise ClientError if there is none."""
    answer = client.fetch(path)
    try:
        return reduce(getitem, members, json.loads(answer.body if answer.status < 300 else ""))
    except MALFORMED as error:
        start = answer.body[:200].decode(errors="replace").strip()
        what = f"the answer to GET {path.partition('?')[0]} is not that of a Prometheus"
        raise ClientError(f"{what}: {answer.status} {start}") from error
