"""The words that describe the arguments of NVML functions are valid."""

from __future__ import annotations

from each_case import each_case
from gpumon_sim.library import DESCRIBED, signature


@each_case("function", sorted(DESCRIBED))
def test_the_arguments_of_every_function_are_described(function: str) -> None:
    """Every simulated or recorded function has words that describe all arguments of the C function."""
    described = signature(function)

    assert described is not None
    assert len(described.c_types) >= len(described.words)
