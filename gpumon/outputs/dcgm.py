"""Renders /metrics/dcgm: metrics as dcgm-exporter names them, for dashboards and rules made for dcgm-exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Labels
from gpumon.outputs.dcgm_fields import FIELDS, UNITS, DcgmField, values_of
from gpumon.outputs.dcgm_values import Values
from gpumon.outputs.prometheus import head, number_text, series_prefix
from gpumon.state.report import Report

PATH = "/metrics/dcgm"
_DIGITS = 9
"""Decimal places to which a value is rounded after conversion to another unit, so that 1980000000 Hz is exactly 1980
MHz.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmPage:
    """Renders the page /metrics/dcgm. It caches nothing, so it costs nothing until a client requests the page."""

    host: str
    canonical: bool = False
    """True for the names and units of dcgm-exporter 4.9; False for those of 4.8 and earlier."""
    host_label: str | None = None
    """Label for the host name; None for the label that dcgm-exporter has: hostname if `canonical`, else Hostname."""

    def render(self, report: Report) -> str:
        """Return the page of a Report as text."""
        version = "DCGM_FI_SYSTEM_DRIVER_VERSION" if self.canonical else "DCGM_FI_DRIVER_VERSION"
        host_label = self.host_label or ("hostname" if self.canonical else "Hostname")
        common = {host_label: self.host, version: report.driver.driver}
        gpus = [(state, _labels(state, common)) for state in report.gpus]
        return "".join(self._family(field, report, gpus) for field in FIELDS)

    def _family(self, field: DcgmField, report: Report, gpus: Sequence[tuple[GpuState, Labels]]) -> str:
        name = field.canonical if self.canonical else field.legacy
        unit = field.unit if name == field.legacy else ""
        factor, lines = UNITS[unit], []
        for state, own in gpus:
            for labels, value in [*_instance_values(field, state)] or field.read(report, state):
                number = value if factor == 1 else round(value * factor, _DIGITS)
                lines.append(f"{series_prefix(name, own + labels)}{number_text(number)}\n")
        text = f"{field.help} In {unit}." if unit else field.help
        return head(name, text, field.type(canonical=self.canonical)) + "".join(lines) if lines else ""


def _instance_values(field: DcgmField, state: GpuState) -> Values:
    """Yield the value of each MIG GPU instance, which the page exports in place of the GPU's own value.

    Only one compute instance of each GPU instance is read, because all have the values of the GPU instance.
    """
    instances = {mig.gpu_instance_id: mig for mig in reversed(state.migs)}
    for number, mig in sorted(instances.items()):
        labels = (("GPU_I_PROFILE", mig.profile.rpartition("c.")[2]), ("GPU_I_ID", str(number)))
        yield from ((labels, value) for _, value in values_of(mig.mig, field.source))


def _labels(state: GpuState, common: Mapping[str, str | None]) -> Labels:
    """Return the labels of a GPU, then the labels in `common`. Omit labels without a value."""
    device = None if state.gpu.minor is None else f"nvidia{state.gpu.minor}"
    identity = {"gpu": str(state.index), "UUID": state.uuid, "pci_bus_id": state.bus_id}
    labels = {**identity, "device": device, "modelName": state.gpu.name, **common}
    return tuple((name, value) for name, value in labels.items() if value)
