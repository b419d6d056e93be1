"""TABLE: what differs by product: the NVLinks in use, the margin at which heat is too much.

A link that is down is a fault only where it should be up.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One row: GPUs of one or more names that are wired alike."""

    names: str
    """Regular expression for the whole product name, as NVML gives it."""
    links: int
    link_speed: float | None = None
    """Bytes a second and direction that each is good for; None where nobody has written it down."""
    boards: tuple[int, ...] = ()
    """How many GPUs are soldered together with all their links. None: links come with a bridge that is sold apart."""
    fewer: tuple[int, ...] = ()
    """Numbers with which hosts are sold as well, though nobody can tell there which links are in use."""
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
        # Where NVML counts 18, six stay down (Azure/azurehpc-health-checks #162): then those that were up should be.
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
        source="data sheets: PCIe alone",
    ),
)

SLOWDOWN_MARGINS = (
    (r"NVIDIA B[23]00.*", -3.0),
    (r"NVIDIA (GB[23]00|GH200|H100|H200|H800|H20|L40|L40S)\b.*", -2.0),
)
"""Thermal margin in degrees, by product name, below which the hardware slows it down; down to it the software does.

`GPU Slowdown T.Limit Temp` of published nvidia-smi output, and NVSentinel's design 042.
"""
COHERENT = r"NVIDIA (GH|GB)\d+.*"
"""Names of GPUs that share their memory with a Grace CPU: the kernel gives it to whom it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The GPUs around one."""

    count: int
    """All that this host has, itself included."""
    passed_through: frozenset[str]
    """Bus ids of those that belong to virtual machines: the fabric may be divided."""


class ExpectedLinks(enum.Enum):
    """Which links of a GPU should be up."""

    ALL = "all"
    ALL_OR_NONE = "all, once one of them has been up"
    BEEN_UP = "those that have been up"
    UNKNOWN = "nobody can tell"


def link_expectation(
    name: str | None, nvlinks: float | None, *, mig: bool, guest: bool, around: Neighbours
) -> ExpectedLinks:
    """What can be expected of a GPU that has so many links by NVML's count.

    A part of a board is a guest's or a container's: its links may be switched off. With MIG on, no link is used.
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
    """The links that should be up, given those that have been up since the agent's start."""
    if what is ExpectedLinks.ALL or (what is ExpectedLinks.ALL_OR_NONE and been_up):
        return links
    return () if what is ExpectedLinks.UNKNOWN else been_up


def board_size(name: str | None, count: int) -> int | None:
    """How many GPUs a host has where at least so many of this product are; None where any number can be."""
    product = _product(name or "")
    sizes = sorted({*product.boards, *product.fewer}) if product is not None and product.boards else []
    return next((size for size in sizes if size >= count), None)


def link_speed(name: str | None) -> float | None:
    """Bytes a second and direction that each NVLink of this product is good for."""
    product = _product(name or "")
    return None if product is None else product.link_speed


@cache
def _product(name: str) -> Product | None:
    return next((one for one in PRODUCTS if re.fullmatch(one.names, name)), None)


@cache
def slowdown_margin(name: str) -> float | None:
    """Of a product that is known here."""
    return next((margin for names, margin in SLOWDOWN_MARGINS if re.fullmatch(names, name)), None)


@cache
def is_coherent(name: str) -> bool:
    """Whether its memory is the host's as well: what is used of it need not belong to a process on the GPU."""
    return re.fullmatch(COHERENT, name) is not None
