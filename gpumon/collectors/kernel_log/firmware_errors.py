"""Assemble PCIe errors that the host's firmware reports (ACPI APEI), each from several kernel log records.

On most servers the firmware handles PCIe errors first. The kernel then logs no AER message for them.
"""

from __future__ import annotations

import re

from gpumon.collectors.kernel_log.lines import PCI_ADDRESS, Line, pcie_error

_RECORD = re.compile(r"\{(?P<report>\d{1,10})\}\[Hardware Error\]: (?P<text>[^\n]{1,200})")
_SEVERITY = re.compile(r" Error \d+, type: (?P<severity>fatal|recoverable|corrected|info)")
_PCIE = "  section_type: PCIe error"
_DEVICE = re.compile(rf"  device_id: {PCI_ADDRESS}")
_MAX_REPORTS = 16
"""Max number of firmware reports that are assembled at once. Records of reports by several processors may alternate."""


class FirmwareErrors:
    """Assembles the firmware's error reports from records of the kernel log, passed to `read` in the order of the log.

    Each record of a report begins with the report's number in braces. A report has sections, each with
    severity, type and details such as the device:
    https://www.kernel.org/doc/html/latest/PCI/pcieaer-howto.html, drivers/firmware/efi/cper.c.
    """

    def __init__(self) -> None:
        self._severities: dict[str, str] = {}
        """Severity of the current section of each report, by report number."""
        self._pcie: set[str] = set()
        """Numbers of the reports whose current section is a PCIe error, but whose device has not been read yet."""

    def read(self, text: str) -> Line | None:
        """Read the text of one record. Return the PCIe error if this record completes an uncorrected one, else None."""
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
