"""Driver messages in the kernel log are parsed in every format, and the result names no process."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from each_case import each_case
from hypothesis import example, given
from hypothesis import strategies as st

from gpumon.collectors.kernel_log.lines import MAX_TEXT, Line, parse, parse_quoted, without_processes
from gpumon.collectors.kernel_log.watch import KernelLog, Record
from gpumon.model.driver_errors import NIC_ERRORS, NVLINK_DISCOVERY
from gpumon.model.error_event import AER, AER_FATAL, AER_NONFATAL, DRIVER, NIC, SXID, XID

GPU = "00000000:1B:00.0"
SWITCH = "00000000:C1:00.0"


def xid(code: int, text: str, **values: object) -> Line:
    return Line(kind=XID, code=code, bus_id=GPU, text=text, **values)  # type: ignore[arg-type]


@each_case(
    ("printed", "line"),
    [
        (
            "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            xid(79, "GPU has fallen off the bus."),
        ),
        ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", xid(79, "GPU has fallen off the bus.")),
        ("NVRM: Xid (PCI:0000:1B:00): 43, pid=812, name=ray::IDLE, Ch 00000008", xid(43, "Ch 00000008", pid=812)),
        ("NVRM: Xid (0000:1b:00): 14, Channel 00000001", xid(14, "Channel 00000001")),
        ("NVRM: Xid (1b:00): 14, Channel 00000001", xid(14, "Channel 00000001")),
        ("NVRM: Xid (PCI:0000:1b:00): 63", xid(63, "")),
        (
            "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 31, pid=1, name=a.out, Ch 00000010, intr 00000000. MMU Fault",
            xid(31, "Ch 00000010, intr 00000000. MMU Fault", gpu_instance_id=5, pid=1),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:00): 13, Graphics Exception",
            xid(13, "Graphics Exception", gpu_instance_id=5, compute_instance_id=0),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            xid(45, "Ch 00000001 caused by previous Xid 149", pid=1818990),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 94, Contained: SM (0x1). RST: No, D-RST: No",
            xid(94, "Contained: SM (0x1). RST: No, D-RST: No"),
        ),
        (
            "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
            xid(79, "GPU 0000:1b:00.0: GPU has fallen off the bus.", numbered=False),
        ),
        (
            "NVRM: GPU at PCI:0000:1b:00.0 has fallen off the bus.",
            xid(79, "GPU at PCI:0000:1b:00.0 has fallen off the bus.", numbered=False),
        ),
        (
            "NVRM: The NVIDIA GPU 0000:1b:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n" + "NVRM: "
            "fallen off the bus and is not responding to commands.",
            xid(
                79,
                "The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and"
                " is not responding to commands.",
                numbered=False,
            ),
        ),
        (
            (
                "NVRM: The NVIDIA GPU 0000:1b:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has NVRM: fallen "
                "off the bus and is not responding to commands."
            ),
            xid(
                79,
                "The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and"
                " is not responding to commands.",
                numbered=False,
            ),
        ),
        (
            "NVRM: GPU at 0000:1b:00.0 has fallen off the bus.",
            xid(79, "GPU at 0000:1b:00.0 has fallen off the bus.", numbered=False),
        ),
        (
            (
                "NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system has fallen "
                "off the bus and is\nNVRM: not responding to commands."
            ),
            xid(
                79,
                "The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and"
                " is not responding to commands.",
                numbered=False,
            ),
        ),
        (
            "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1784)",
            xid(143, "GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1784)", numbered=False),
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            Line(
                kind=SXID,
                code=12028,
                bus_id=SWITCH,
                text="Non-fatal, Link 32 egress non-posted PRIV error (First)",
                fatal=False,
            ),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            Line(kind=SXID, code=20034, bus_id=SWITCH, text="Fatal, Link 48 LTSSM Fault Up", fatal=True),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10003, Host_reset asserted",
            Line(kind=SXID, code=10003, bus_id=SWITCH, text="Host_reset asserted"),
        ),
    ],
)
def test_every_xid_format_is_parsed(printed: str, line: Line) -> None:
    """An Xid is parsed with and without process, MIG instance, PCI domain and number, and the process is removed."""
    assert parse(printed) == line


@each_case(
    "printed",
    [
        "usb 1-1: new device",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05",
        "NVRM: GPU has fallen off the bus.",
        "NVRM: GPU 0000:1b:00.0: GPU serial number is 1654922000259.",
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus. Not really",
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed! in a.out",
        "NVRM: knvlinkUpdateLinkConnectionStatus: link 3 of GPU 1",
        "NVRM: GPU 0000:1b:00.0: rm_init_adapter failed, device minor number 5",
        "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1784) in a.out",
        "NVRM: Xid (PCI:0000:1b:00): abc, pid=1",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Severity 0 Engine instance 60 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Data {0x0000003c, 0x0000003c, 0x00000000}",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 26006, SOE HALT data[0] = 0x               0",
        "my-program: SXid is a word",
        "my-program: I saw NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_other_lines_are_ignored(printed: str) -> None:
    """Lines without a device or an error, and continuation lines of an SXid, are ignored."""
    assert parse(printed) is None


def test_lines_with_a_dmesg_or_syslog_prefix_are_parsed() -> None:
    line = xid(79, "GPU has fallen off the bus.")
    printed = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    for before in ("", "[ 12.345678] ", "Nov 20 16:04:01 gpu-17 kernel: "):
        assert parse_quoted(before + printed) == line
    assert parse_quoted("usb 1-1: new device") is None


printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=15)


@given(
    pid=st.integers(1000, 4194304),
    name=printable,
    quote=st.sampled_from(["{}", "'{}'"]),
    code=st.sampled_from([13, 31, 43, 45, 109]),
)
@example(pid=1234, name="a, b, c", quote="{}", code=13)
def test_no_process_is_named(pid: int, name: str, quote: str, code: int) -> None:
    """The result contains neither the PID nor any part of a process name, with or without commas."""
    text = f"pid={quote.format(pid)}, name={name}, the text: intr <>"
    line = parse(f"NVRM: Xid (PCI:0000:1b:00): {code}, {text}")

    assert line is not None
    assert line.text in {"the text: intr <>", ""}


words = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:1b:00): 79, ",
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 12028, ",
        "NVRM: ",
        "fallen off the",
    ]
)


@given(st.lists(st.one_of(words, st.text(), st.from_regex(r"pid=.{0,9}, name=.{0,9},"))).map("".join))
def test_arbitrary_lines_are_parsed_safely(printed: str) -> None:
    """Parsing of any line does not raise, and the result is short and printable."""
    line = parse(printed) or parse_quoted(printed)
    texts = [without_processes(printed), line.text if line is not None else ""]

    assert all(text.isprintable() and len(text) <= MAX_TEXT for text in texts)


@each_case(
    ("code", "printed"),
    [
        (NVLINK_DISCOVERY, "knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!"),
        (NVLINK_DISCOVERY, "GPU3 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"),
        # Lines of drivers 570 to 610, as quoted in issues: kubernetes-sigs/dra-driver-nvidia-gpu#982,
        # NVIDIA/open-gpu-kernel-modules#446; the rest from its source.
        (
            2,
            "nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset @ k.c",
        ),
        (
            3,
            "GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) @ k.c",
        ),
        (4, "krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7"),
        (5, "nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."),
        (6, "The NVIDIA probe routine failed for 1 device(s)."),
        (
            7,
            "imexsessionapiDestruct_IMPL: Abrupt nvidia-imex daemon shutdown detected, disabled fabric allocations!",
        ),
    ],
)
def test_a_line_that_names_no_device_is_an_error_of_the_driver(code: int, printed: str) -> None:
    assert parse(f"NVRM: {printed}") == Line(kind=DRIVER, code=code, bus_id="", text=printed)


PORT, NETWORK = "00000000:15:01.0", "00000000:86:00.1"


@each_case(
    ("printed", "bus_id"),
    [
        (
            "pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0",
            GPU,
        ),
        ("pcieport 0000:15:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:1b:00.0", GPU),
        ("nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (x)", GPU),
        ("nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer", GPU),
        ("pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", PORT),
        ("pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: id=1b00", PORT),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x200d, ERR_FATAL received from 0000:1b:00.0", GPU),
        ("pcieport 0000:15:01.0: DPC: ERR_FATAL detected", PORT),
        ("pcieport 0000:15:01.0: DPC: unmasked uncorrectable error detected", PORT),
        ("pcieport 0000:15:01.0: DPC unmasked uncorrectable error detected, remove downstream devices", PORT),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected", PORT),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f17: RP PIO error detected", PORT),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f05, ERR_NONFATAL received from 0000:1b:00.0", GPU),
    ],
)
def test_fatal_pcie_errors_belong_to_their_source_device(printed: str, bus_id: str) -> None:
    """Fatal PCIe errors, and errors that disabled a link, are parsed in the formats of kernels 4.9 to 6.17."""
    line = parse(printed)

    assert line is not None
    assert (line.kind, line.code, line.bus_id, line.fatal) == (AER, AER_FATAL, bus_id, True)
    assert line.text == printed.partition(": ")[2]


@each_case(
    ("printed", "bus_id"),
    [
        ("pcieport 0000:15:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:1b:00.0", GPU),
        ("pcieport 0000:15:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: id=1b00", PORT),
        (
            "nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (x)",
            GPU,
        ),
    ],
)
def test_non_fatal_pcie_errors_have_a_code_of_their_own(printed: str, bus_id: str) -> None:
    """Uncorrected PCIe errors that are not fatal are parsed, apart from the fatal ones of the device."""
    line = parse(printed)

    assert line is not None
    assert (line.kind, line.code, line.bus_id, line.fatal) == (AER, AER_NONFATAL, bus_id, False)


@each_case(
    "printed",
    [
        "pcieport 0000:15:01.0: AER: Corrected error received: 0000:1b:00.0",
        "pcieport 0000:15:01.0: AER: Correctable error message received from 0000:1b:00.0",
        "nvidia 0000:1b:00.0:   device [10de:2330] error status/mask=00004000/00000000",
        "pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        "pcieport 0000:15:01.0: DPC: software trigger detected",
        "pcieport 0000:15:01.0: DPC: enabled with IRQ 30",
        "my-program: I saw Uncorrected (Fatal)",
        "mlx5_core 0000:86:00.1: mlx5_cmd_out_err:808:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad oper",
        "mlx5_core 0000:86:00.1 ens1f1np1: Link up",
        "mlx5_core 0000:86:00.1: Port module event: module 0, Cable unplugged",
        "mlx5_core 0000:86:00.1: print_health_info:434:(pid 0): ext_synd 0x8a08",
        "mlx5_ib: Mellanox Connect-IB Infiniband driver",
    ],
)
def test_corrected_and_routine_errors_are_ignored(printed: str) -> None:
    """Corrected PCIe errors and failed commands of transceiver monitoring are ignored."""
    assert parse(printed) is None


@each_case(
    ("printed", "code", "text"),
    [
        (
            "poll_health:801:(pid 0): device's health compromised - reached miss count",
            1,
            "device's health compromised - reached miss count",
        ),
        (
            "mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still not working",
            1,
            "health recovery flow aborted, PCI reads still not working",
        ),
        (
            "wait_func:1155:(pid 984354): TEARDOWN_HCA(0x103) timeout. Will cause a leak of a command resource",
            2,
            "TEARDOWN_HCA(0x103) timeout. Will cause a leak of a command resource",
        ),
        (
            "print_health_info:432:(pid 0): synd 0x8: unrecoverable hardware error",
            7,
            "synd 0x8: unrecoverable hardware error",
        ),
        (
            "synd 0xb: HW fatal error\n",
            7,
            "synd 0xb: HW fatal error",
        ),
        (
            "print_health_info:432:(pid 0): synd 0x7: irisc not responding",
            7,
            "synd 0x7: irisc not responding",
        ),
        (
            "poll_health:825:(pid 0): Fatal error 3 detected",
            7,
            "Fatal error 3 detected",
        ),
        (
            "print_health_info:432:(pid 0): synd 0x1: firmware internal error",
            8,
            "synd 0x1: firmware internal error",
        ),
        (
            "print_health_info:432:(pid 0): synd 0x10: High temperature",
            3,
            "synd 0x10: High temperature",
        ),
        (
            "temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1",
            3,
            "High temperature on sensors with bit set 0 1",
        ),
        (
            "Port module event[error]: module 0, Cable error, High Temperature",
            6,
            "Port module event[error]: module 0, Cable error, High Temperature",
        ),
        (
            "mlx5_pcie_event:303:(pid 1237): Detected insufficient power on the PCIe slot (27W).",
            4,
            "Detected insufficient power on the PCIe slot (27W).",
        ),
    ],
)
def test_adapter_errors_of_the_driver_are_parsed(printed: str, code: int, text: str) -> None:
    """An adapter error names one function of the card, and the process is removed."""
    line = parse(f"mlx5_core 0000:86:00.1: {printed}")

    assert line == Line(kind=NIC, code=code, bus_id=NETWORK, text=text, fatal=NIC_ERRORS[code].fatal)


@each_case(
    "printed",
    [
        (
            "The device didn't send any completion for admin cmd CREATE_AH(0x5) status 0 "
            "(ctx 0x00000000d1c1a2b3, sq producer: 7, sq consumer: 6, cq consumer: 6)"
        ),
        "Admin queue is closed",
    ],
)
def test_an_efa_device_that_does_not_answer_is_parsed(printed: str) -> None:
    """The messages of the EFA driver name its device after the PCI address."""
    line = parse(f"efa 0000:86:00.1 rdmap16s27: {printed}")

    assert line == Line(kind=NIC, code=5, bus_id=NETWORK, text=printed, fatal=True)


# Messages of the kernel about a process, whose name (15 bytes) and file name (255 bytes) any user chooses.
KERNEL_MESSAGES = (
    "{task}[20176]: segfault at 0 ip 0000000000401136 sp 00007ffd3f2a1b40 error 6 in {file}[1646,401000+78000]",
    (
        "{task}[20176]: segfault at 0 ip 0000000000401136 sp 00007ffd3f2a1b40 error 6 in {file}[401000+78000]"
        " likely on CPU 3 (core 3, socket 0)"
    ),
    "{task}[20176]: segfault at 0 ip 0000000000401136 sp 00007ffd3f2a1b40 error 6 in {file}",
    "{task}[7] bad frame in rt_sigreturn frame:00000000a5a5a5a5 ip:401136 sp:7ffd orax:f in {file}[401000+78000]",
    "{task}[7] general protection fault ip:401136 sp:7ffd error:0 in {file}[401000+78000]",
    "traps: {task}[7] trap invalid opcode ip:401136 sp:7ffd error:0 in {file}[401000+78000]",
    "{task}[7]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation fault in {file}[400000+1000]",
    "{task}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0",
    "{task} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    " in {file}[401000+78000]",
)
tasks = st.one_of(
    st.sampled_from(
        [
            "NVRM: 61:00.0",
            "NVRM: GPU 1b:0",
            "NVRM: Xid (1b:0",
            "NVRM: Xid (1b:0)",
            "mlx5_core 1a:0 ",
            "a 1b:0: AER: ",
            "nvidia-nvswitch",
        ]
    ),
    st.text(max_size=15).filter(lambda text: len(text.encode(errors="replace")) <= 15),
)
files = st.one_of(
    st.sampled_from(
        [
            "fallen off the bus",
            "RmInitAdapter failed! (0x62:0x65:1784)",
            "health compromised",
            "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
            ": 0000:1b:00.0: GPU has fallen off the bus.",
            "x\nNVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
            "): 79, GPU has fallen off the bus.",
            "AER: Uncorrected (Fatal) error received: 0000:1b:00.0",
            "mlx5_core 0000:86:00.1: device's health compromised",
        ]
    ),
    st.text(max_size=255),
)


@given(message=st.sampled_from(KERNEL_MESSAGES), task=tasks, file=files)
@example(message=KERNEL_MESSAGES[0], task="NVRM: 61:00.0", file="fallen off the bus")
@example(message=KERNEL_MESSAGES[0], task="mlx5_core 1a:0 ", file="health compromised")
@example(message=KERNEL_MESSAGES[0], task="NVRM: Xid (1b:0", file="): 79, GPU has fallen off the bus.")
def test_a_message_about_a_process_is_no_error_of_a_device(message: str, task: str, file: str) -> None:
    """A user who crashes a process with chosen task and file names cannot make the kernel log an error of a device."""
    assert parse(message.format(task=task, file=file)) is None


CRASH = """
import ctypes, mmap, sys
ctypes.CDLL(None).prctl(15, b"NVRM: 61:00.0", 0, 0, 0)
file = open(sys.argv[1], "rb")
code = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
"""A program that names its task like the driver, and crashes in the code of a file of any name."""


@pytest.mark.skipif(
    os.geteuid() != 0
    or platform.machine() != "x86_64"
    or not os.access("/dev/kmsg", os.R_OK)
    or not Path("/usr/bin/python3").exists(),
    reason="needs root, x86, the kernel log and a Python that other users can start",
)
def test_a_crash_of_an_unprivileged_user_is_no_error_of_a_gpu() -> None:
    """The message that the real kernel logs for a crash with chosen names is read, and is no error."""
    log = KernelLog(Path("/dev/kmsg"))
    read_all(log)
    with tempfile.TemporaryDirectory() as folder:  # one that other users can read
        Path(folder).chmod(0o755)
        code = Path(folder, "GPU has fallen off the bus.")
        code.write_bytes(b"\x31\xc0\xc6\x00\x01".ljust(4096, b"\x90"))  # mov byte [0], 1
        command = ["/usr/bin/python3", "-I", "-c", CRASH, str(code)]
        crashed = subprocess.run(command, user=65534, group=65534, extra_groups=[], check=False)
    records = [record.text for record in read_all(log) if record.text.startswith("NVRM: 61:00.0[")]
    log.close()
    if crashed.returncode != -signal.SIGSEGV or not records:
        pytest.skip("this kernel does not log the crash of a process")

    assert "GPU has fallen off the bus." in records[-1]
    assert parse(records[-1]) is None


def read_all(log: KernelLog) -> list[Record]:
    records = list(log.read())
    while log.more:
        records += log.read()
    return records
