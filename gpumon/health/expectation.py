"""Expected number of GPUs, and its basis. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumon.model.snapshot import HOST


class Basis(enum.StrEnum):
    """Basis of the expected number."""

    CONFIGURED = "configured"
    ACCEPTED = "accepted"
    PRODUCT = "product"
    LEARNED = "learned"
    BUS = "bus"


BASES = {
    Basis.CONFIGURED: "as configured",
    Basis.ACCEPTED: "as accepted by an operator",
    Basis.PRODUCT: "as on other hosts with this product",
    Basis.LEARNED: "as seen before on this host",
    Basis.BUS: "as found on the PCI bus",
}
"""Basis as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected number of GPUs. Fewer are a fault."""

    count: int = 0
    basis: Basis = Basis.LEARNED
    may: int | None = None
    """Number above `count` that the host may have. Whether all were given to this guest or container is unknown."""
    may_basis: Basis = Basis.BUS
    place: str = HOST
    """One of PLACES."""
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
    """Return the expectation from these numbers of GPUs; None if one is unknown.

    `learned` is the highest number ever present. In a guest the product's number is the host's, and in a container so
    is the number on the PCI bus: the host may have passed on fewer.
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
