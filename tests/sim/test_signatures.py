"""The words for the arguments of NVML's functions: whole, in one place, and as the functions themselves have them."""

from __future__ import annotations

from each_case import each_case

from gpumon.sim.library import exports
from gpumon.sim.signatures import SIGNATURES, WITHOUT, signature


@each_case("function", sorted(exports()))
def test_every_exported_function_can_be_recorded(function: str) -> None:
    """A function that is added is written down in signatures, unless its decorator knows its arguments."""
    export, known = exports()[function], signature(function)

    if function in WITHOUT:
        assert known is None, "either it is recorded or it is not"
        return
    assert known is not None, f"add a row for {function} to SIGNATURES, or a name to WITHOUT"
    assert tuple(known.c_types) == tuple(export.takes)
    assert function not in SIGNATURES or export.arguments is None, "the decorator knows it already"
