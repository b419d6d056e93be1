"""Parsing of the marker file."""

from __future__ import annotations

import pytest
from each_case import each_case

from gpumon.model.bus_id import nvml_bus_id, parse_bus_id
from gpumon.services.release_marker import MarkerError, MarkerRequest, parse


@each_case(
    ("text", "expected"),
    [
        ("", MarkerRequest()),
        (" \n", MarkerRequest()),
        ("for=5m", MarkerRequest(seconds=300)),
        ("gpu=3\nfor=1h30m\n", MarkerRequest(gpu="3", seconds=5400)),
        ("gpu=GPU-1f62de0b-cc7b", MarkerRequest(gpu="GPU-1f62de0b-cc7b")),
        ("gpu=0000:1b:00.0", MarkerRequest(gpu="0000:1b:00.0")),
    ],
)
def test_a_marker_is_parsed(text: str, expected: MarkerRequest) -> None:
    """An empty marker requests a release of the whole node for the maximum duration."""
    assert parse(text) == expected


@each_case("text", ["for", "for=", "for=5", "for=-5m", "for=0s", "gpu=", "GPU=3", "gpu=1 gpu=1", "for:5m"])
def test_an_invalid_marker_is_an_error(text: str) -> None:
    with pytest.raises(MarkerError, match=r"write"):
        parse(text)


@pytest.mark.parametrize("text", ["0000:1b:00.0", "1B:00.0", "00000000:1b:00.0", "0:1b:00.0"])
def test_pci_addresses_are_normalized(text: str) -> None:
    """The notations of the kernel, lspci and NVML give one address."""
    assert parse_bus_id(text) == "00000000:1B:00.0"


@each_case("text", ["", "3", "GPU-3", "1b:00", "0000:1b:00.8", "0000:1b:00.0 "])
def test_an_invalid_pci_address_is_rejected(text: str) -> None:
    """An invalid PCI address gives None as user input, and a ValueError from NVML's own notation."""
    assert parse_bus_id(text) is None
    with pytest.raises(ValueError, match="no PCI address"):
        nvml_bus_id(text)
