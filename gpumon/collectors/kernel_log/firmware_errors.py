"""Assemble the PCIe errors that the firmware of the host reports (ACPI APEI), one of which fills several records.

Firmware that handles errors first, the default of most servers, leaves no AER message of the kernel.
"""

from __future__ import annotations

import re

from gpumon.collectors.kernel_log.lines import PCI_ADDRESS, Line, pcie_error

_RECORD = re.compile(r"\{(?P<report>\d{1,10})\}\[Hardware Error\]: (?P<text>[^\n]{1,200})")
_SEVERITY = re.compile(r" Error \d+, type: (?P<severity>fatal|recoverable|corrected|info)")
_PCIE = "  section_type: PCIe error"
_DEVICE = re.compile(rf"  device_id: {PCI_ADDRESS}")
_MAX_REPORTS = 16
"""Max number of reports that are assembled at once. Records of several processors may alternate."""


class FirmwareErrors:
    """Reads the records of the kernel log in order, and holds the sections of reports that are not complete.

    A report begins with a number in braces. It has sections, each with a severity, a type, and details such as the
    device: https://www.kernel.org/doc/html/latest/PCI/pcieaer-howto.html, drivers/firmware/efi/cper.c.
    """

    def __init__(self) -> None:
        self._severities: dict[str, str] = {}
        """Severity of the section that is being read, by number of its report."""
        self._pcie: set[str] = set()
        """Numbers of the reports whose section is a PCIe error without a device so far."""

    def read(self, text: str) -> Line | None:
        """Return the uncorrected PCIe error that this record completes; None if it completes none."""
        if "[Hardware Error]: " not in text[:32] or (record := _RECORD.fullmatch(text)) is None:
            return None
        report, words = record["report"], record["text"]
        if section := _SEVERITY.fullmatch(words):
            self._begin_section(report, section["severity"])
        elif words == _PCIE and report in self._severities:
            self._pcie.add(report)
        elif report in self._pcie and (device := _DEVICE.fullmatch(words)):
            self._pcie.discard(report)
            severity = self._severities.pop(report)
            if severity in {"fatal", "recoverable"}:
                return pcie_error(device, f"The firmware reported a {severity} PCIe error", fatal=severity == "fatal")
        return None

    def _begin_section(self, report: str, severity: str) -> None:
        if len(self._severities) >= _MAX_REPORTS:
            oldest = next(iter(self._severities))
            del self._severities[oldest]
            self._pcie.discard(oldest)
        self._pcie.discard(report)
        self._severities[report] = severity
