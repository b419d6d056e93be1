"""A GPU as stored in the table `gpus` of the SQLite store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGpu:
    """A GPU that was present at some time. From this row the agent identifies the GPU while it does not answer."""

    uuid: str
    bus_id: str
    serial: str
    name: str
    first_wall: float
    last_wall: float
    """`first_wall` and `last_wall` are the Unix times of the first and of the last reading."""
    gpu: int | None = None
    """Index of the GPU at its last reading, in the boot `boot_id`."""
    boot_id: str = ""
    vbios: str = ""
    inforom: str = ""
    gsp: str = ""
    nvlinks: int | None = None
    energy: float | None = None
    """The driver's energy counter in joules, at the last reading. A much lower value later in the same boot shows that
    the GPU was reset.
    """
    lanes: float | None = None
    """Highest number of PCIe lanes that the GPU had at this address, or the number that the operator accepted."""
    lanes_accepted: bool = False
    expected: bool = True
    """False if the GPU was replaced, or if the operator accepted that it is gone."""
