"""Parse records of the kernel log about errors of GPUs, NVSwitches, NICs and PCIe devices.

Parsing never raises. Names and ids of processes are removed from the text of a parsed line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpumon.model.driver_errors import DRIVER_ERRORS, NIC_ERRORS
from gpumon.model.error_event import (
    AER,
    AER_FATAL,
    AER_NONFATAL,
    DRIVER,
    FALLEN_OFF,
    INIT_FAILED,
    NIC,
    SXID,
    XID,
)

MAX_TEXT = 300
"""Max characters of the text of a parsed line."""
_KNOWN_LINES = 512
"""Number of texts in the cache of `parse`. In a storm of errors the same texts repeat."""
_LONGEST = 1024
"""Max characters of a record that are parsed. The rest of a longer record is ignored."""

PCI_ADDRESS = (
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-7]))?"
)
_MIG = r"(?:\s+GPU-I:(?P<gpu_instance>\d{1,4}))?(?:\s+GPU-CI:(?P<compute_instance>\d{1,4}))?"
_TASK = re.compile(r".{0,15}\[\d+\]:? ", re.DOTALL)
"""Start of a kernel message about a task, such as `name[pid]: segfault at ... in file[...]`. Such a message is not
parsed, because any user can choose the names of the process and of the file.
"""
_XID = re.compile(
    rf"NVRM: Xid \({PCI_ADDRESS}{_MIG}(?: [\w-]+:\w+)*\):\s*(?P<code>\d{{1,6}})(?:[,:]\s*(?P<text>.*))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_SXID = re.compile(
    rf"nvidia-nvswitch\d*: SXid \({PCI_ADDRESS}\):\s*(?P<code>\d{{1,6}}),\s*(?P<text>.*)", re.IGNORECASE | re.DOTALL
)
_SXID_DETAIL = re.compile(r"(Severity\s+\d|Data\s*\{|SOE HALT data\[)", re.IGNORECASE)
"""Start of the text of a detail line, which repeats the number of an SXid but is no further error."""
_FATAL = {"fatal": True, "non-fatal": False, "nonfatal": False}
_OFF_THE_BUS = re.compile(
    rf"NVRM: (?:The NVIDIA GPU|GPU at|GPU) {PCI_ADDRESS}:? (?:(?:GPU )?has fallen off the bus\.?|"
    r"\(PCI ID: [0-9a-f]{4}:[0-9a-f]{4}\) installed in this system has fallen off the bus and is"
    r" not responding to commands\.?)",
    re.IGNORECASE,
)
_INIT_FAILED = re.compile(rf"NVRM: GPU {PCI_ADDRESS}: RmInitAdapter failed! \(0x[0-9a-f]+:0x[0-9a-f]+:\d+\)")
_LOST = ((FALLEN_OFF, _OFF_THE_BUS), (INIT_FAILED, _INIT_FAILED))
"""Xid numbers, each with the pattern of a driver message that reports the same error in words, without the number."""
_DRIVER = tuple((code, re.compile(rf"NVRM: (?:GPU\d+ )?(?:{row.message})\s*")) for code, row in DRIVER_ERRORS.items())
_SOURCE = r"(?:id=)?[0-9a-f:.]{4,16}"
_AER = re.compile(
    rf"[\w-]+ {PCI_ADDRESS}: (?:AER: )?(?:"
    r"(?:Multiple )?Uncorrect(?:ed|able) \((?P<message>(?:Non-)?Fatal)\) error (?:message )?received(?: from|:) "
    rf"{_SOURCE}(?: \([\w ]+\))?|"
    r"PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?P<severity>(?:Non-)?Fatal)\), type=[\w ]+"
    r"(?:, (?:id=[0-9a-f]+)?\([\w ]+\))?)\s*"
)
_DPC = re.compile(
    rf"[\w-]+ {PCI_ADDRESS}: DPC:? (?:containment event, status:0x[0-9a-f]+[,:]? )?(?:"
    rf"ERR_(?:NON)?FATAL received from {_SOURCE}|"
    r"(?:ERR_(?:NON)?FATAL|unmasked uncorrectable error|RP PIO error|reserved error) detected"
    r"(?:, remove downstream devices)?)\s*"
)
"""Message of a PCIe port that disabled its link (Downstream Port Containment) after any kind of error. Up to Linux 6.15
the status is on a separate line. A message about a link that software disabled does not match, as it is no error.
"""
_AER_SOURCE = re.compile(rf"\b(?:received(?: from)?:? ){PCI_ADDRESS}")
_NIC = re.compile(
    r"(?:mlx5_core|efa) (?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-7])"
    r"(?: [^\s:\[\]]{1,15})?: (?:\w+:\d+:\(pid \d+\): )?(?P<text>.*)",
    re.DOTALL,
)
_TROUBLES = tuple((code, re.compile(row.message, re.IGNORECASE)) for code, row in NIC_ERRORS.items())
_BEGIN = re.compile(r"NVRM:|nvidia-nvswitch\d")
_NEXT_LINE = re.compile(r"\s*\n(?:NVRM:\s*)?|\s+NVRM:\s+")
# A task's name has at most 15 characters and may contain commas. It is taken to end before the last of the commas that
# follow at most 15 characters; a longer name, before its first comma.
_NAME = r"""name\s*=\s*(?:.{0,15}(?=,)|[^,]*)"""
_PROCESS = re.compile(
    rf"(?:pid\s*[=:]\s*(?:'[^']*'|<[^>]*>|\w*)(?:,\s*{_NAME})?|\b{_NAME})(?:,\s*|\s+|$)", re.IGNORECASE
)
_PID = re.compile(r"pid\s*=\s*'?(\d{1,10})\b")
_WORD_OF_PROCESS = re.compile(r"\bprocess\s+\d+(?:\s*\([^)]*\))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An error of a GPU, NVSwitch, NIC or PCIe device, as parsed from the kernel log."""

    kind: str
    code: int
    bus_id: str
    """PCI address of the device in NVML's format, such as 00000000:1B:00.0; "" if the line names no device."""
    text: str
    numbered: bool = True
    """False if the line reports an Xid in words, without its number; True for all other lines."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    fatal: bool | None = None
    pid: int | None = None
    """Process id in the line of an Xid, in the kernel's initial PID namespace; None if the line has no process id."""


@lru_cache(_KNOWN_LINES)
def parse(text: str) -> Line | None:
    """Return the error that the text of a kernel log record reports; None if it reports none that gpumon records.

    The whole text must match a message of the driver or kernel: users choose parts of other messages, for example the
    names of their processes, and could quote an error there.
    """
    if _TASK.match(text):
        return None
    if text.startswith("NVRM:"):
        return _xid(text[:_LONGEST]) or _parse_lost(text[:_LONGEST]) or _driver(text[:_LONGEST])
    if text.startswith("nvidia-nvswitch"):
        return _sxid(text[:_LONGEST])
    if text.startswith(("mlx5_core ", "efa ")) and (line := _nic(text[:_LONGEST])) is not None:
        return line
    return _aer(text[:_LONGEST]) if "Fatal)" in text or "DPC" in text else None


def parse_quoted(text: str) -> Line | None:
    """Return the GPU or NVSwitch error in a line of syslog, which begins with time and host; None if there is none."""
    begin = _BEGIN.search(text)
    return None if begin is None else parse(text[begin.start() :])


def without_processes(text: str) -> str:
    """Return the text as one printable line of at most MAX_TEXT characters, without ids and names of processes."""
    line = _WORD_OF_PROCESS.sub("a process", _PROCESS.sub("", _NEXT_LINE.sub(" ", text[:_LONGEST])))
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line).strip(
        " ,"
    )[:MAX_TEXT]


def _xid(text: str) -> Line | None:
    match = _XID.fullmatch(text)
    if match is None:
        return None
    instance, compute = match["gpu_instance"], match["compute_instance"]
    return Line(
        kind=XID,
        code=int(match["code"]),
        bus_id=_nvml_bus_id(match),
        text=without_processes(match["text"] or ""),
        gpu_instance_id=None if instance is None else int(instance),
        compute_instance_id=None if compute is None else int(compute),
        pid=None if (named := _PID.match(match["text"] or "")) is None else int(named[1]),
    )


def _parse_lost(text: str) -> Line | None:
    line = _NEXT_LINE.sub(" ", text).strip()
    for code, message in _LOST:
        if match := message.fullmatch(line):
            words = without_processes(line.removeprefix("NVRM: "))
            return Line(kind=XID, code=code, bus_id=_nvml_bus_id(match), text=words, numbered=False)
    return None


def _driver(text: str) -> Line | None:
    code = next((code for code, message in _DRIVER if message.fullmatch(text)), None)
    if code is None:
        return None
    return Line(kind=DRIVER, code=code, bus_id="", text=without_processes(text.removeprefix("NVRM: ")))


def _sxid(text: str) -> Line | None:
    match = _SXID.fullmatch(text)
    if match is None or _SXID_DETAIL.match(match["text"]):
        return None
    return Line(
        kind=SXID,
        code=int(match["code"]),
        bus_id=_nvml_bus_id(match),
        text=without_processes(match["text"]),
        fatal=_FATAL.get(match["text"].partition(",")[0].strip().lower()),
    )


def _aer(text: str) -> Line | None:
    """Return the uncorrected PCIe error in a line; None if there is none.

    The error's bus id is that of the error source, if the line names one, else that at the start of the line.
    """
    match = _AER.fullmatch(text)
    logged = match or _DPC.fullmatch(text)
    if logged is None:
        return None
    # A link that containment has disabled is lost to the driver, even if the error itself was not fatal.
    fatal = match is None or "Fatal" in {match["message"], match["severity"]}
    source = _AER_SOURCE.search(text) or logged
    return pcie_error(source, without_processes(text.partition(": ")[2]), fatal=fatal)


def pcie_error(device: re.Match[str], text: str, *, fatal: bool) -> Line:
    """Return a PCIe error with this text. `device`: a match with groups domain, bus, device and function."""
    code = AER_FATAL if fatal else AER_NONFATAL
    return Line(kind=AER, code=code, bus_id=_nvml_bus_id(device), text=text, fatal=fatal)


def _nic(text: str) -> Line | None:
    match = _NIC.fullmatch(text)
    if match is None:
        return None
    code = next((code for code, message in _TROUBLES if message.fullmatch(match["text"].strip())), None)
    if code is None:
        return None
    words = without_processes(match["text"])
    return Line(kind=NIC, code=code, bus_id=_nvml_bus_id(match), text=words, fatal=NIC_ERRORS[code].fatal)


def _nvml_bus_id(match: re.Match[str]) -> str:
    domain, bus, device, function = (int(match[part] or "0", 16) for part in ("domain", "bus", "device", "function"))
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function}"


_RECORD = re.compile(r"\{(?P<report>\d{1,10})\}\[Hardware Error\]: (?P<text>[^\n]{1,200})")
_SEVERITY = re.compile(r" Error \d+, type: (?P<severity>fatal|recoverable|corrected|info)")
_PCIE = "  section_type: PCIe error"
_DEVICE = re.compile(rf"  device_id: {PCI_ADDRESS}")
_MAX_REPORTS = 16
"""Max number of firmware reports that are assembled at once. Records of reports by several processors may alternate."""


class FirmwareErrors:
    """Assembles the firmware's error reports from records of the kernel log, passed to `read` in the order of the log.

    On most servers the firmware (ACPI APEI) handles PCIe errors first, and the kernel logs no AER message for them.
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
            if len(self._severities) >= _MAX_REPORTS:
                oldest = next(iter(self._severities))
                del self._severities[oldest]
                self._pcie.discard(oldest)
            self._pcie.discard(report)
            self._severities[report] = section["severity"]
        elif words == _PCIE and report in self._severities:
            self._pcie.add(report)
        elif report in self._pcie and (device := _DEVICE.fullmatch(words)):
            self._pcie.discard(report)
            severity = self._severities.pop(report)
            if severity in {"fatal", "recoverable"}:
                return pcie_error(device, f"The firmware reported a {severity} PCIe error", fatal=severity == "fatal")
        return None
