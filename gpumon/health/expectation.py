"""How many GPUs should be here, and who says so. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumon.model.snapshot import HOST


class Basis(enum.StrEnum):
    """Who says so."""

    CONFIGURED = "configured"
    ACCEPTED = "accepted"
    PRODUCT = "product"
    LEARNED = "learned"
    BUS = "bus"


BASES = {
    Basis.CONFIGURED: "as configured",
    Basis.ACCEPTED: "as a person accepted",
    Basis.PRODUCT: "as hosts with this product have",
    Basis.LEARNED: "as many as were here before",
    Basis.BUS: "as many as are on the PCI bus",
}
"""In words for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """How many GPUs should be here: fewer are a fault."""

    count: int = 0
    basis: Basis = Basis.LEARNED
    may: int | None = None
    """More than `count`: there may be so many on the host, but nobody can tell whether all are given to us."""
    may_basis: Basis = Basis.BUS
    place: str = HOST
    """One of PLACES."""
    unlisted: tuple[str, ...] = ()
    """PCI addresses at which GPUs are that the driver does not list."""


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
    """What follows from these numbers of GPUs, None where nobody says one.

    `learned` is the most that were ever here. In a guest the product's number, and in a container what is on the PCI
    bus too, is the host's: it may have given us fewer.
    """
    if configured is not None:
        return Expectation(count=configured, basis=Basis.CONFIGURED, place=place, unlisted=unlisted)
    if accepted:
        return Expectation(count=learned, basis=Basis.ACCEPTED, place=place, unlisted=unlisted)
    more = [(count, basis) for count, basis in ((product or 0, Basis.PRODUCT), (on_bus, Basis.BUS)) if count > learned]
    if not more:
        return Expectation(count=learned, place=place, unlisted=unlisted)
    count, basis = max(more, key=lambda one: one[0])
    if place == HOST:
        return Expectation(count=count, basis=basis, place=place, unlisted=unlisted)
    return Expectation(count=learned, may=count, may_basis=basis, place=place, unlisted=unlisted)
