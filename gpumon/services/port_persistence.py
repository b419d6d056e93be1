"""Between the main loop and the store: which ports it knows, so that they are missed when they are down or gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpumon.model.port_record import PortRecord
from gpumon.state.report import Report
from gpumon.store.writer import Writer

PORT_SECONDS = 3600.0
"""How old what is stored of a port that is here may become."""


class KeptPorts:
    """Use from the loop's thread."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[str, PortRecord] = {}
        """Stored, or about to be; by identity."""

    def recalled(self, ports: Iterable[PortRecord]) -> None:
        """What the store knew at start."""
        self._known = {port.identity: port for port in ports} | self._known

    def begun_anew(self) -> None:
        """The store knows nothing: all of them are news to it."""
        self._known.clear()

    def keep(self, report: Report, *, all_of_them: bool = False) -> None:
        """Store the ports where something is news; all when one is new, for who came later tells who replaced whom.

        `all_of_them`: how long they were up as well, which is worth a row only when the agent ends.
        """
        if not report.internal.restored:  # the store knows since when
            return
        told = [port for port in report.internal.ports.records.values() if port.bus_id or port.guid]
        everything = all_of_them or any(port.identity not in self._known for port in told)
        new = [port for port in told if everything or self._is_news(port)]
        self._known |= {port.identity: port for port in new}
        if new:
            self._writer.submit(lambda store: store.keep_ports(new), failed=lambda _: self._forget(new))

    def _is_news(self, port: PortRecord) -> bool:
        known = self._known.get(port.identity)
        if known is None or port.last_wall - known.last_wall > PORT_SECONDS:
            return True
        return replace(known, last_wall=port.last_wall, last_up=port.last_up) != port

    def _forget(self, ports: Iterable[PortRecord]) -> None:
        """Not stored: they are news again."""
        for port in ports:
            self._known.pop(port.identity, None)
