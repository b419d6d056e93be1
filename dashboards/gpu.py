"""DASHBOARD: one GPU over time, with every metric of it (tests/dashboards/test_dashboards.py lists the exceptions)."""

from __future__ import annotations

from dashboards.gpu_links import LINKS, MIG
from dashboards.gpu_readings import CHECKS, READINGS, UNREAD
from dashboards.panels import LEVELS, NONE, YES_NO, Column, Dashboard, Section, stat, table, timeline
from dashboards.promql import KERNEL_LOG, biggest, recent_xids, series, stated

_IDENTITIES = ("name", "serial", "uuid", "pci_bus_id", "vbios", "inforom", "gsp")
_PLACE = ("chassis", "slot", "tray")
_SMALL = {"width": 6}


def _now(metric: str) -> str:
    return f"max({series(f'gpumon_gpu_{metric}')})"


DASHBOARD = Dashboard(
    uid="gpumon-gpu",
    title="gpumon: GPU",
    description="One GPU over time, with everything that is known about it.",
    one_node=True,
    one_gpu=True,
    sections=(
        Section(
            title="How is it?",
            panels=(
                stat("Verdict?", "The worst verdict about this GPU.", _now("health"), words=LEVELS, **_SMALL),
                stat("Does it answer?", "The driver can read this GPU.", _now("up"), words=YES_NO, **_SMALL),
                stat(
                    "Driver recommends?",
                    "Recovery action of the driver. Ampere and later, driver 570 and later.",
                    _now("recovery_action"),
                    words={
                        0: ("nothing", "green"),
                        1: ("reset", "orange"),
                        2: ("reboot", "red"),
                        3: ("drain P2P", "orange"),
                        4: ("drain, reset", "orange"),
                    },
                    **_SMALL,
                ),
                stat("Processes?", "Processes on this GPU.", _now("processes"), **_SMALL),
                table(
                    "Which board is it?",
                    "Identity of the board, for a return to its vendor, and its place in a rack of GB200 or later.",
                    [
                        biggest(", ".join(_IDENTITIES), series("gpumon_gpu_info")),
                        biggest(", ".join(("uuid", *_PLACE)), series("gpumon_platform_info")),
                    ],
                    [Column(name, name) for name in (*_IDENTITIES, *_PLACE)],
                    width=24,
                    height=3,
                ),
                table(
                    "What is wrong with it?",
                    "One line for each fault of this GPU or its node that no other fault explains.",
                    [
                        stated(
                            biggest("check, code, reason, action", series("gpumon_health_check_info", 'device=""')),
                            "reason",
                            "nothing is wrong",
                            f"{series('gpumon_gpu_health')} != 1",
                        )
                    ],
                    [Column(name, name) for name in ("check", "code", "reason", "action")],
                ),
                timeline(
                    "How has this GPU been?",
                    "The worst verdict about this GPU.",
                    f"max by (gpu) ({series('gpumon_gpu_health')})",
                    "verdict",
                    LEVELS,
                ),
                CHECKS,
                UNREAD,
                table(
                    "When did it last log each Xid?",
                    "Last occurrence, and count since the agent's store was created.",
                    [
                        biggest("xid", f"1000 * {series('gpumon_gpu_xid_last_timestamp_seconds')}"),
                        stated(
                            biggest("xid", f"{series('gpumon_gpu_xid_errors_total')} > 0"), "xid", "none", KERNEL_LOG
                        ),
                    ],
                    [Column("xid", "Xid"), Column("A", "last", unit="dateTimeFromNow"), Column("B", "count")],
                ),
                timeline(
                    "Which Xids occurred in this time?",
                    "Each Xid is shown for 5 minutes.",
                    recent_xids("xid"),
                    "Xid {{xid}}",
                    {0: NONE, 1: ("Xid", "red")},
                    known=KERNEL_LOG,
                ),
            ),
        ),
        *READINGS,
        LINKS,
        MIG,
    ),
)
