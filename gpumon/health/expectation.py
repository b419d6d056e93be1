"""The number of GPUs that this host should have, chosen from several sources, and the basis of the choice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model.snapshot import HOST
from gpumon.model.str_enum import StrEnum


class Basis(StrEnum):
    """Where the expected number of GPUs comes from."""

    CONFIGURED = "configured"
    ACCEPTED = "accepted"
    PRODUCT = "product"
    LEARNED = "learned"
    BUS = "bus"


BASES = {
    Basis.CONFIGURED: "as configured",
    Basis.ACCEPTED: "as accepted by an operator",
    Basis.PRODUCT: "as on other hosts with this product",
    Basis.LEARNED: "as read before on this host",
    Basis.BUS: "as found on the PCI bus",
}
"""Text of each basis in the reason of a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The number of GPUs that this host should have. Fewer GPUs are a fault."""

    count: int = 0
    basis: Basis = Basis.LEARNED
    may: int | None = None
    """Number of GPUs, higher than `count`, that the physical host may have; None if no source has a higher number. How
    many of them this guest or container was given is unknown.
    """
    may_basis: Basis = Basis.BUS
    place: str = HOST
    """Where the agent runs: host, guest, container or sandbox."""
    unlisted: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver does not list."""


def expectation(
    *,
    configured: int | None,
    accepted: bool,
    learned: int,
    product: int | None,
    on_bus: int,
    place: str,
    unlisted: tuple[str, ...] = (),
) -> Expectation:
    """Return the expected number of GPUs, chosen from the numbers of several sources. None: the source has no number.

    `configured`: number in the configuration, which takes precedence. `accepted`: whether an operator accepted
    `learned`, the highest number that was ever present; it is then chosen. `product`: number on hosts with this
    product. `on_bus`: number on the PCI bus. Else, on a host, the highest of `learned`, `product` and `on_bus` is
    chosen. In a guest or container `learned` is chosen, and a higher number becomes `may`: it may be that of the
    physical host, which gives the guest or container fewer GPUs. `place`, `unlisted`: attributes of the result.
    """
    if configured is not None:
        return Expectation(count=configured, basis=Basis.CONFIGURED, place=place, unlisted=unlisted)
    if accepted:
        return Expectation(count=learned, basis=Basis.ACCEPTED, place=place, unlisted=unlisted)
    more = [(count, basis) for count, basis in ((product or 0, Basis.PRODUCT), (on_bus, Basis.BUS)) if count > learned]
    if not more:
        return Expectation(count=learned, place=place, unlisted=unlisted)
    count, basis = max(more, key=lambda pair: pair[0])
    if place == HOST:
        return Expectation(count=count, basis=basis, place=place, unlisted=unlisted)
    return Expectation(count=learned, may=count, may_basis=basis, place=place, unlisted=unlisted)
