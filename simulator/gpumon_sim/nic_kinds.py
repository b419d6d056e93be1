"""TABLE: the network adapters that a scenario can add to a simulated node with its key `nics`, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOG_LINE = (
    "mlx5_core {address}: mlx5_cmd_out_err:835:(pid 18360): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad operation(0x2), syndrome (0x9a6171), err(-22)"
)
"""Kernel log line that the driver writes when the counter of a limited physical function (LPF) is read.

Source: https://github.com/leptonai/gpud/issues/1164 (DGX B200, DGX OS 7).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicKind:
    """One simulated network adapter: its RDMA device, PCI address, link layer, speed, driver and network interface."""

    device: str
    address: str
    link_layer: str = "Ethernet"
    gigabits: float
    hca_type: str = "MT4129"
    driver: str = "mlx5_core"
    numa_node: int = 0
    netdev: str = ""
    master: str = ""
    """Master (such as a bond) of the adapter's network interface; empty if the interface has no master."""
    limited: bool = False
    """True for a limited physical function (LPF): reads of its port counters fail with EINVAL and are logged."""


NIC_KINDS: Mapping[str, NicKind] = {
    # Functions of the NVSwitches on NVLink 5 boards, which the fabric manager uses. Source: DGX OS 7 release notes
    # ("Accessing PF0 and PF1 is restricted"); https://github.com/prometheus/node_exporter/issues/3434.
    "limited_pf": NicKind(
        device="mlx5_20", address="0002:05:00.0", link_layer="InfiniBand", gigabits=400, limited=True
    ),
    # Azure's accelerated networking, beside mlx5_ib0 to mlx5_ib7. Azure may remove it at any time. Source: Azure
    # azurehpc-health-checks conf/nd96isr_h200_v5.conf; learn.microsoft.com accelerated-networking-how-it-works.
    "azure_vf": NicKind(
        device="mlx5_an0", address="0002:10:00.0", gigabits=100, netdev="enP2s1", master="eth0", hca_type="MT4122"
    ),
    # RoCE LAG: the driver makes one RDMA device for the two network interfaces of a bond.
    "bond": NicKind(device="mlx5_bond_0", address="0002:20:00.0", gigabits=25, netdev="ens1f0np0", master="bond0"),
    "storage": NicKind(device="mlx5_21", address="0002:30:00.0", gigabits=200, netdev="ens2np0"),
    "management": NicKind(device="mlx5_23", address="0002:50:00.0", gigabits=25, netdev="ens3np0"),
    # Device id 0xa2dc is 41692. Source: https://pci-ids.ucw.cz/read/PC/15b3/a2dc.
    "bluefield": NicKind(device="mlx5_22", address="0002:40:00.0", gigabits=400, netdev="ens4np0", hca_type="MT41692"),
    # EFA reports every port as active. Source: Linux drivers/infiniband/hw/efa/efa_verbs.c, efa_query_port.
    "efa": NicKind(
        device="rdmap16s27", address="0002:60:00.0", link_layer="Unknown", gigabits=100, driver="efa", hca_type=""
    ),
    # The state of an EFA device is that of its network interface, if any. Source: NVIDIA/NVSentinel,
    # docs/nic-health-monitor.md.
    "efa_netdev": NicKind(
        device="rdmap17s27",
        address="0002:70:00.0",
        link_layer="Unknown",
        gigabits=100,
        driver="efa",
        hca_type="",
        netdev="ens5",
    ),
}
