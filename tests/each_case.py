"""Table tests: one test runs over all cases and reports every case that fails."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each case and raise all failures together; the arguments are those of `pytest.mark.parametrize`.

    The cases share the fixtures of the test, except `tmp_path`, of which each case gets a directory of its own.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [_values(case, len(arguments)) for case in cases]
    labels = list(ids) if ids is not None else [repr(row)[:200] for row in rows]
    assert rows, "a table test without cases guarantees nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: object) -> None:
            failures: list[Exception] = []
            for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
                own = _own_directory(fixtures, number)
                try:
                    test(**own, **dict(zip(arguments, row, strict=True)))
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001  # all offenders are reported
                    failures.append(_with_case_name(failure, label))
            if failures and sys.version_info < (3, 11):
                raise failures[0]
            if failures:
                message = f"{len(failures)} of {len(rows)} cases failed"
                raise ExceptionGroup(message, failures)  # noqa: F821  # the branch above is for Python 3.10

        signature = inspect.signature(test)
        remaining = [item for name, item in signature.parameters.items() if name not in arguments]
        cast("Any", run).__signature__ = signature.replace(parameters=remaining)
        return run

    return decorate


def _values(case: object, count: int) -> tuple[object, ...]:
    """Return the values of a case, which is a value, a tuple or a `pytest.param`."""
    if isinstance(case, type(pytest.param())):
        return tuple(case.values)
    return (case,) if count == 1 else tuple(cast("Iterable[object]", case))


def _own_directory(fixtures: dict[str, object], number: int) -> dict[str, object]:
    """Return the fixtures with a directory for this case alone."""
    parent = fixtures.get("tmp_path")
    if not isinstance(parent, Path):
        return fixtures
    directory = parent / str(number)
    directory.mkdir()
    return {**fixtures, "tmp_path": directory}


def _with_case_name(failure: BaseException, label: str) -> Exception:
    """Return the failure with the name of its case."""
    error = failure if isinstance(failure, Exception) else AssertionError(str(failure))
    if sys.version_info >= (3, 11):
        error.add_note(f"case: {label}")
    return error
