"""GPU products: the NVLinks and the number of GPUs that a host with them should have, and their peculiarities."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import ExpectedLinks
from gpumon.model.snapshot import HOST
from gpumon.model.str_enum import StrEnum
from gpumon.probe.core.preflight import IDLE_UTILIZATION, idle_bytes

RANKS: Mapping[str, int] = {
    "Kepler": 2,
    "Maxwell": 3,
    "Pascal": 4,
    "Volta": 5,
    "Turing": 6,
    "Ampere": 7,
    "Ada": 9,  # the catalogue has no column for Ada, which can report the codes of Ampere and of Hopper
    "Hopper": 9,
    "Blackwell": 10,
}
"""Order of the architectures, from the oldest on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """GPU products with the same NVLink wiring."""

    names: str
    """Regular expression for the whole product name, as NVML returns it."""
    links: int
    link_speed: float | None = None
    """Speed of each link in bytes per second in each direction; None if it is not documented."""
    boards: tuple[int, ...] = ()
    """Possible numbers of GPUs on a board that connects all links. Empty if links need a separate bridge."""
    fewer: tuple[int, ...] = ()
    """Other numbers of GPUs in hosts with this product. Which links such a host uses is unknown."""
    source: str


PRODUCTS = (
    Product(
        names=r"NVIDIA B[23]00.*",
        links=18,
        link_speed=50e9,
        boards=(8,),
        source="NVLink 5: 1.8 TB/s of 100 GB/s a link; DGX B200 and B300 have eight GPUs on NVSwitch",
    ),
    Product(
        names=r"NVIDIA GB[23]00.*",
        links=18,
        link_speed=50e9,
        boards=(4,),
        fewer=(2,),
        source="as B200; a compute tray of an NVL72 has four GPUs, whose links go to switches of the rack",
    ),
    Product(
        names=r"NVIDIA (H100 \d+GB HBM3|H200)",
        links=18,
        link_speed=25e9,
        boards=(4, 8),
        source="NVLink 4: 900 GB/s of 50 GB/s a link; HGX boards with four or eight GPUs",
    ),
    Product(names=r"NVIDIA H20(-.*)?", links=18, link_speed=25e9, boards=(8,), source="NVLink 4: 900 GB/s; HGX H20"),
    Product(names=r"NVIDIA H800", links=8, link_speed=25e9, boards=(8,), source="NVLink 4: 400 GB/s"),
    Product(
        names=r"NVIDIA A100-SXM4-\d+GB",
        links=12,
        link_speed=25e9,
        boards=(4, 8, 16),
        source="NVLink 3: 600 GB/s of 50 GB/s a link; HGX boards with four, eight and two times eight GPUs",
    ),
    Product(names=r"NVIDIA A800-SXM4-\d+GB", links=8, link_speed=25e9, boards=(8,), source="NVLink 3: 400 GB/s"),
    Product(
        names=r"(Tesla|NVIDIA) V100-SXM[23]-\d+GB",
        links=6,
        link_speed=25e9,
        boards=(8, 16),
        fewer=(2, 4, 6),
        source="NVLink 2: 300 GB/s of 50 GB/s a link; DGX-1 and DGX-2. On boards with four some links go to the CPU",
    ),
    Product(
        names=r"NVIDIA H100 (PCIe|NVL)",
        links=12,
        link_speed=25e9,
        # If NVML counts 18, six stay down (Azure/azurehpc-health-checks #162): only links that were up are expected.
        source="600 GB/s over three bridges, of four links each",
    ),
    Product(
        names=r"NVIDIA H200 NVL", links=18, link_speed=25e9, source="900 GB/s over a bridge for two or four boards"
    ),
    Product(
        names=r"NVIDIA A100(-PCIE-40GB| 80GB PCIe)", links=12, link_speed=25e9, source="600 GB/s over three bridges"
    ),
    Product(names=r"NVIDIA (A30|A40|RTX A5000|RTX A6000)", links=4, source="112.5 to 200 GB/s over one bridge"),
    Product(
        names=r"(Tesla T4|NVIDIA (A2|A10|A10G|A16|L4|L20|L40|L40S|T4|RTX PRO .*|RTX .* Ada Generation))",
        links=0,
        source="data sheets: PCIe only",
    ),
)

COHERENT = r"NVIDIA (GH|GB)\d+.*"
"""Regular expression for GPUs that share their memory with a Grace CPU: the kernel may give it to any process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Properties of a host's GPUs that decide which NVLinks of each GPU should be up."""

    count: int
    """Number of GPUs of the host."""
    passed_through: frozenset[str]
    """PCI bus ids of GPUs that are assigned to virtual machines. If there are any, the fabric may be partitioned."""


def link_expectation(
    name: str | None, nvlinks: float | None, *, mig: bool, guest: bool, around: Neighbours
) -> ExpectedLinks:
    """Return the rule for which NVLinks of a GPU should be up. `nvlinks`: number of links that NVML reports.

    A guest may have only some GPUs of a board, and the links to the others are then switched off. MIG uses no links.
    """
    if mig:
        return ExpectedLinks.UNKNOWN
    product = _product(name or "")
    if product is None or product.links != nvlinks or guest:
        return ExpectedLinks.BEEN_UP
    if around.count in product.boards and not around.passed_through:
        return ExpectedLinks.ALL
    return ExpectedLinks.BEEN_UP if product.boards else ExpectedLinks.ALL_OR_NONE


def expected_links(what: ExpectedLinks, links: Collection[str], been_up: Collection[str]) -> Collection[str]:
    """Return those of `links` that should be up by the rule `what`. `been_up`: links that were up before."""
    if what is ExpectedLinks.ALL or (what is ExpectedLinks.ALL_OR_NONE and been_up):
        return links
    return () if what is ExpectedLinks.UNKNOWN else been_up


def board_size(name: str | None, count: int) -> int | None:
    """Return the smallest usual number of GPUs, at least `count`, on hosts with this product."""
    product = _product(name or "")
    sizes = sorted({*product.boards, *product.fewer}) if product is not None and product.boards else []
    return next((size for size in sizes if size >= count), None)


def link_speed(name: str | None) -> float | None:
    """Return the speed of each NVLink of a product in bytes per second in each direction; None if not documented."""
    product = _product(name or "")
    return None if product is None else product.link_speed


@cache
def _product(name: str) -> Product | None:
    return next((product for product in PRODUCTS if re.fullmatch(product.names, name)), None)


@cache
def is_coherent(name: str) -> bool:
    """Return whether the GPU shares its memory with a Grace CPU. Such memory may be in use without a GPU process."""
    return re.fullmatch(COHERENT, name) is not None


LATCHED = 0.99
"""Minimum utilization that may be latched."""


def memory_in_use(gpu: Gpu) -> float | None:
    """Return the bytes of GPU memory in use; None on Grace hosts, whose kernel also keeps other pages in GPU memory."""
    return None if is_coherent(gpu.name or "") else gpu.memory_used_bytes


def is_utilization_latched(gpu: Gpu) -> bool:
    """Return True if the GPU reports full utilization, but no process, and neither memory nor engines are in use.

    From Blackwell on, the utilization can stay at 100 % after a process was killed while its kernel ran, until another
    process opens and cleanly closes a CUDA context on the GPU (Datura-ai/lium-io#1142). Without a reading of the memory
    no engine may show any activity: in a container the agent may not see the processes of a job.
    """
    memory, engines = memory_in_use(gpu), gpu.sm_active_ratio
    return (
        RANKS.get(gpu.architecture or "Kepler", RANKS["Blackwell"]) >= RANKS["Blackwell"]
        and gpu.processes == 0
        and (gpu.utilization_ratio or 0.0) >= LATCHED
        and (memory is not None or engines is not None)
        and (memory or 0.0) <= idle_bytes(exact=gpu.memory_reserved_bytes is not None)
        and max(engines or 0.0, gpu.memory_utilization_ratio or 0.0)
        <= (IDLE_UTILIZATION if memory is not None else 0.0)
    )


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
    """Higher number of GPUs of the physical host, of which this guest or container may have been given `count`."""
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
    """Return the expected number of GPUs, chosen from the numbers of several sources; None: no number.

    A number that an operator configured or accepted comes first, then the highest of `learned` (ever present),
    `product` (usual on other hosts) and `on_bus`. A guest or container may have been given fewer GPUs than that: then
    `learned` is expected, and the higher number is `may`.
    """
    chosen = Expectation(count=learned, place=place, unlisted=unlisted)
    if configured is not None:
        return replace(chosen, count=configured, basis=Basis.CONFIGURED)
    if accepted:
        return replace(chosen, basis=Basis.ACCEPTED)
    more = [(count, basis) for count, basis in ((product or 0, Basis.PRODUCT), (on_bus, Basis.BUS)) if count > learned]
    if not more:
        return chosen
    count, basis = max(more, key=lambda pair: pair[0])
    if place == HOST:
        return replace(chosen, count=count, basis=basis)
    return replace(chosen, may=count, may_basis=basis)
