"""The signatures of NVML functions match the simulated functions."""

from __future__ import annotations

from each_case import each_case

from gpumon.sim.library import exports
from gpumon.sim.signatures import SIGNATURES, WITHOUT, signature


@each_case("function", sorted(exports()))
def test_every_exported_function_can_be_recorded(function: str) -> None:
    """Every function has a signature in SIGNATURES, unless its decorator has its arguments."""
    export, written = exports()[function], signature(function)

    if function in WITHOUT:
        assert written is None, "either it is recorded or it is not"
        return
    assert written is not None, f"add a row for {function} to SIGNATURES, or a name to WITHOUT"
    assert tuple(written.c_types) == tuple(export.takes)
    assert function not in SIGNATURES or export.arguments is None, "the decorator knows it already"
