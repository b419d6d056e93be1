"""Orders (configuration) for a sampler child that records."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gpumon.model.orders import SamplerOrders


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOrders(SamplerOrders):
    record: int
    """File descriptor to which driver calls and their results are recorded."""
    survey: bool
    """True to make the driver calls that a recording needs but polls do not make, each once, and then end."""

    @classmethod
    def of(cls, orders: SamplerOrders, *, record: int, survey: bool) -> RecordingOrders:
        """Return the orders of a sampler child, to read all that it can read and to log nothing but warnings."""
        known = {field.name: getattr(orders, field.name) for field in fields(orders)}
        return cls(**known | {"detailed": True, "log_level": "warning"}, record=record, survey=survey)
