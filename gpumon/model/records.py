"""Records that the store keeps of GPUs, ports, agent runs and notified alerts, and the state of a counter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.model.instant import Instant
from gpumon.model.reading import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAlert:
    """A firing alert with all its labels and texts, as it is sent to receivers."""

    labels: Labels
    """Labels of the alert, the same as in Prometheus, sorted by name. They identify the alert."""
    summary: str
    description: str
    action: str
    serial: str = ""
    runbook_url: str = ""
    since: float
    """Seconds since the epoch at which the alert began to fire."""

    @property
    def key(self) -> str:
        """Return the labels as text, which identifies the alert in the store."""
        return json.dumps(self.labels)

    @property
    def name(self) -> str:
        return dict(self.labels)["alertname"]

    @property
    def annotations(self) -> dict[str, str]:
        """Return the texts of the alert, by annotation name as in the Prometheus alert rules. Leave out empty texts."""
        texts = {
            "summary": self.summary,
            "description": self.description,
            "action": self.action,
            "serial": self.serial,
            "runbook_url": self.runbook_url,
        }
        return {name: text for name, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class NotifiedAlert:
    """An alert of which a receiver was or will be notified, stored until "resolved" is delivered or is refused."""

    receiver: str
    alert: SentAlert
    delivered: bool = True
    """Whether the receiver was notified that the alert fires."""
    ended: float | None = None
    """Seconds since the epoch at which the alert ended; None while it fires."""
    failing_since: float | None = None
    """Seconds since the epoch of the first attempt in an unbroken series of failed ones; None after a success."""
    refused: bool = False
    """Whether the receiver refused the message that the alert fires. It then gets no message at the end."""


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
    """The driver's energy counter in joules at the last reading. A much lower value in the same boot shows a reset."""
    lanes: float | None = None
    """Highest number of PCIe lanes that the GPU had at this address, or the number that the operator accepted."""
    lanes_accepted: bool = False
    expected: bool = True
    """False if the GPU was replaced, or if the operator accepted that it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """A port that was present at some time. If it is `expected`, the agent reports it while it is down or missing."""

    identity: str
    """CARD/PORT. PORT is the port number. CARD is the GUID of the card, with @ and the PCI address if several ports
    have the same GUID and number; without a GUID the PCI address, or else the device name.
    """
    device: str
    """Name of the RDMA device, such as mlx5_0, at the last reading of the port."""
    port: str
    bus_id: str
    """PCI address of the port's card at the last reading; "" for a device that is not on a PCI bus."""
    guid: str
    """Node GUID of the port's card; "" if the card has none."""
    link_layer: str
    board: str
    """Board id of the card, by which the vendor names the card's model; "" if not reported."""
    firmware: str
    first_wall: float
    last_wall: float
    """`first_wall` and `last_wall` are the Unix times of the first and of the last reading. `first_wall` is set again
    if the port returns after it was no longer expected.
    """
    first_up: float | None = None
    last_up: float | None = None
    """`first_up` and `last_up` are the Unix times at which the port was first and last up; None if it was never up."""
    speed: float | None = None
    """Highest observed speed per direction in bytes per second, or a lower speed that the operator accepted. Earlier
    speeds are dropped if the port comes up after it was no longer expected.
    """
    role: str | None = None
    """Role at the last reading, one of ROLES; None if an earlier version of the agent wrote the record."""
    expected: bool | None = None
    """Whether the port should be up. True: it was in use, or replaced a port that was in use. None: it was never in
    use, so it is probably not connected. False: it was replaced or excluded, or accepted as down or gone.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """One run of the agent process, from its start to its end."""

    version: str
    began: Instant
    last: float
    """Time of the last heartbeat, in seconds since the epoch."""
    stopped: float | None = None
    """Time of a regular stop (seconds since the epoch); None if it runs, crashed, was killed or ended with the host."""
    planned: bool = False
    """Whether the node was in maintenance at the last heartbeat."""


class Count(NamedTuple):
    """Exported `total` of one counter, and `raw`, the driver's value that last advanced it; None if integrated."""

    total: float
    raw: float | None
    fallen: float | None = None
    """Value below `raw` that was read after it, by a restart or an error, which a later value must confirm; or None."""
    fallen_at: float = 0.0
    """Time at which `fallen` was first read, as Now.uptime."""


Counts = Mapping[str, Mapping[str, Count]]
"""Counters by metric, then by label value ("" for a metric without labels)."""
