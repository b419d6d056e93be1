"""TABLE: the GPU products that can be simulated. Plain data.

The figures come from published `nvidia-smi -q` output, captured by the nvidia_gpu_exporter project (H100, H200, L40S,
MIG) and NVIDIA/k8s-test-infra (B200, GB200), and from NVIDIA's MIG guide. For a product with variants, they are those
of the most common variant. Our own assumptions are: power and temperatures under full load, thresholds of products that
report none, the reserved memory and idle figures of the H100 PCIe, and the chip-to-chip links.
"""

from __future__ import annotations

from dataclasses import replace

from gpumon_sim.board import MIB, Board, MigProfile


def _mig(names: str, multiprocessors: tuple[int, ...], memory: tuple[int, ...], jpeg: int) -> tuple[MigProfile, ...]:
    """Return the six MIG profiles of a product, smallest first. `names` are separated by spaces, `memory` is in MiB.

    `jpeg` is the number of JPEG engines for each compute slice.
    """
    shapes = (
        (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        (1, 2, (0, 2, 4, 6)),
        (2, 2, (0, 2, 4)),
        (3, 4, (4, 0)),
        (4, 4, (0,)),
        (7, 8, (0,)),
    )
    return tuple(
        MigProfile(
            name=name,
            compute=compute,
            slices=slices,
            starts=starts,
            multiprocessors=multiprocessors[n],
            memory=memory[n] * MIB,
            copy_engines=compute + compute // 7,
            decoders=compute,
            jpeg=jpeg * compute,
            ofa=compute // 7,
        )
        for n, (name, (compute, slices, starts)) in enumerate(zip(names.split(), shapes, strict=True))
    )


H100_SXM = Board(
    product="NVIDIA H100 80GB HBM3",
    architecture=9,
    compute_capability=(9, 0),
    vbios="96.00.A5.00.01",
    pci_device=0x233010DE,
    pci_subsystem=0x16C110DE,
    pcie_generation=5,
    pcie_generation_idle=5,
    memory_total=85520809984,
    memory_reserved=479 * MIB,
    bar1_total=131072 * MIB,
    clocks_idle=(345, 345, 2619, 765),
    clocks_max=(1980, 1980, 2619, 1545),
    power_idle=70.0,
    power_full=725.0,
    power_limit=700.0,
    power_limit_min=200.0,
    power_mean=True,
    memory_power_idle=43.0,
    temperature_idle=34.0,
    temperature_full=67.0,
    memory_temperature_idle=43.0,
    memory_temperature_full=76.0,
    thresholds=(92, 89, 95, 87),
    thermal_limits=(-8, -2, 0, 0),
    links=18,
    link_speed=26562,
    link_version=6,
    remap_banks=2560,
    mig_profiles=_mig(
        "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
        (16, 26, 32, 60, 64, 132),
        (9984, 20096, 20096, 40448, 40448, 81152),
        jpeg=1,
    ),
    gpm=True,
    event_types=0xFF9F,  # on 580.159.04, tests/captures/h100x1-580.159.04-idle.capture
)

H100_PCIE = replace(
    H100_SXM,
    product="NVIDIA H100 PCIe",
    vbios="96.00.89.00.01",
    pci_device=0x233110DE,
    pci_subsystem=0x162610DE,
    clocks_idle=(345, 345, 1593, 765),
    clocks_max=(1755, 1755, 1593, 1620),
    power_idle=50.0,
    power_full=360.0,
    power_limit=350.0,
    temperature_idle=32.0,
    temperature_full=68.0,
    memory_temperature_idle=40.0,
    memory_temperature_full=74.0,
    links=12,
)

H200_SXM = replace(
    H100_SXM,
    product="NVIDIA H200",
    vbios="96.00.A5.00.03",
    pci_device=0x233510DE,
    pci_subsystem=0x18BE10DE,
    memory_total=143771 * MIB,
    memory_reserved=623 * MIB,
    bar1_total=262144 * MIB,
    clocks_idle=(345, 345, 3201, 765),
    clocks_max=(1980, 1980, 3201, 1545),
    power_idle=83.0,
    memory_power_idle=42.0,
    temperature_idle=36.0,
    temperature_full=66.0,
    memory_temperature_idle=38.0,
    memory_temperature_full=70.0,
    thresholds=(95, 89, 95, 87),
    remap_banks=3072,
    mig_profiles=_mig(
        "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
        (16, 26, 32, 60, 64, 132),
        (17856, 35712, 35712, 71424, 71424, 143104),
        jpeg=1,
    ),
)

B200_SXM = Board(
    product="NVIDIA B200",
    architecture=10,
    compute_capability=(10, 0),
    vbios="97.00.FA.00.09",
    pci_device=0x290110DE,
    pci_subsystem=0x199910DE,
    pcie_generation=5,
    pcie_generation_idle=5,
    memory_total=183359 * MIB,
    memory_reserved=728 * MIB,
    bar1_total=262144 * MIB,
    clocks_idle=(120, 120, 3996, 600),
    clocks_max=(1965, 1965, 3996, 1965),
    power_idle=195.0,
    power_full=1030.0,
    power_limit=1000.0,
    power_limit_min=200.0,
    power_mean=True,
    memory_power_idle=22.0,
    temperature_idle=38.0,
    temperature_full=69.0,
    memory_temperature_idle=39.0,
    memory_temperature_full=72.0,
    thresholds=(93, 91, 95, 88),
    thresholds_reported=False,
    thermal_limits=(-5, -3, 0, 0),
    links=18,
    link_speed=53125,
    link_version=7,
    remap_banks=3840,
    mig_profiles=_mig(
        "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
        (18, 30, 36, 70, 72, 148),
        (22784, 45568, 45568, 91136, 91136, 182272),
        jpeg=1,
    ),
    gpm=True,
    event_types=0xC11F,
)

GB200 = replace(
    B200_SXM,
    product="NVIDIA GB200",
    vbios="97.00.B9.00.69",
    pci_device=0x294110DE,
    pci_subsystem=0x204610DE,
    memory_total=189471 * MIB,
    memory_reserved=742 * MIB,
    clocks_max=(2062, 2062, 3996, 1890),
    power_idle=165.0,
    power_full=1230.0,
    power_limit=1200.0,
    memory_power_idle=30.0,
    module_power_idle=467.0,
    temperature_idle=27.0,
    temperature_full=58.0,
    memory_temperature_idle=27.0,
    memory_temperature_full=61.0,
    thresholds=(92, 89, 95, 87),
    thermal_limits=(-5, -2, 0, 0),
    c2c_links=5,
    c2c_speed=44712,
    remap_banks=3968,
)

A100_SXM = Board(
    product="NVIDIA A100-SXM4-80GB",
    architecture=7,
    compute_capability=(8, 0),
    vbios="92.00.9E.00.02",
    pci_device=0x20B210DE,
    pci_subsystem=0x147F10DE,
    pcie_generation=4,
    pcie_generation_idle=4,
    memory_total=81920 * MIB,
    memory_reserved=763 * MIB,
    bar1_total=131072 * MIB,
    clocks_idle=(210, 210, 1593, 585),
    clocks_max=(1410, 1410, 1593, 1290),
    power_idle=60.0,
    power_full=415.0,
    power_limit=400.0,
    power_limit_min=100.0,
    power_mean=False,
    temperature_idle=27.0,
    temperature_full=62.0,
    memory_temperature_idle=41.0,
    memory_temperature_full=74.0,
    thresholds=(92, 89, 95, 85),
    links=12,
    link_speed=25000,
    link_version=4,
    remap_banks=640,
    mig_profiles=_mig(
        "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
        (14, 14, 28, 42, 56, 98),
        (9728, 19968, 19968, 40192, 40192, 80384),
        jpeg=0,
    ),
)

L40S = Board(
    product="NVIDIA L40S",
    architecture=8,
    compute_capability=(8, 9),
    vbios="95.02.66.00.02",
    pci_device=0x26B910DE,
    pci_subsystem=0x185110DE,
    pcie_generation=4,
    pcie_generation_idle=4,
    memory_total=46068 * MIB,
    memory_reserved=609 * MIB,
    bar1_total=65536 * MIB,
    clocks_idle=(2040, 2040, 9001, 1725),
    clocks_max=(2520, 2520, 9001, 1965),
    power_idle=65.0,
    power_full=360.0,
    power_limit=350.0,
    power_limit_min=100.0,
    power_mean=True,
    temperature_idle=29.0,
    temperature_full=64.0,
    thresholds=(93, 90, None, 88),
    thermal_limits=(-5, -2, None, 0),
    remap_banks=192,
)

T4 = Board(
    product="Tesla T4",
    architecture=6,
    compute_capability=(7, 5),
    vbios="90.04.38.00.03",
    pci_device=0x1EB810DE,
    pci_subsystem=0x12A210DE,
    pcie_generation=3,
    pcie_generation_idle=1,
    memory_total=15360 * MIB,
    memory_reserved=393 * MIB,
    bar1_total=256 * MIB,
    clocks_idle=(300, 300, 405, 540),
    clocks_max=(1590, 1590, 5001, 1470),
    performance_state_idle=8,
    power_idle=14.0,
    power_full=73.0,
    power_limit=70.0,
    power_limit_min=60.0,
    power_mean=False,
    temperature_idle=38.0,
    temperature_full=74.0,
    thresholds=(96, 93, None, 85),
)
