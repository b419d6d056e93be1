"""Rows of the table of settings for the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gpumon.config.setting import (
    NEEDS,
    Section,
    SomePath,
    check_argument,
    check_command,
    check_nccl_name,
    check_program,
    number_to_text,
    setting,
    split,
    split_command,
)
from gpumon.probe.core.probes import ALL_REDUCE, PROBES

DAY, YEAR = 86400, 366 * 86400
"""Calendars and sockets know no time that is much longer."""


class Probe(Section):
    """The all-reduce probe."""

    enabled: bool = setting(default=True, meaning="Whether it may run, by itself or on request.")
    python: Annotated[SomePath | None, AfterValidator(check_program)] = setting(
        None,
        "Python interpreter that has torch.",
        default_in_words="the agent's own",
        example="/opt/torch/bin/python",
    )
    interval_seconds: float | None = setting(
        None, "Time between runs.", default_in_words="the probe's own: 21600", example=21600, ge=10, le=YEAR
    )
    jitter_seconds: float | None = setting(
        None,
        "Time by which each run is moved at random, at most.",
        default_in_words="the probe's own: 600",
        example=600,
        ge=0,
        le=YEAR,
    )
    initial_delay_seconds: float | None = setting(
        None,
        "Time from start to the first run.",
        default_in_words="the probe's own: 60, on a simulated node 5",
        example=60,
        ge=0,
        le=YEAR,
    )
    min_idle_seconds: float | None = setting(
        None,
        "Time for which nobody may have used the GPUs before a run by schedule; a run that is due waits for it.",
        default_in_words="the probe's own: 600, on a simulated node 0",
        example=600,
        ge=0,
        le=YEAR,
    )
    allow_partial: bool = setting(
        default=False,
        meaning="Whether a run may leave out GPUs that are in use, if two or more are not. It measures the ring alone.",
    )
    algorithms: Annotated[tuple[Literal["default", "ring"], ...], BeforeValidator(split)] = setting(
        (),
        "Which of NCCL's algorithms a run on all GPUs measures: `default` is its own choice, `ring` is without "
        "NVLink SHARP.",
        default_in_words="both; in a fabric of several nodes the ring",
        example=["default", "ring"],
    )
    deadline_seconds: float | None = setting(
        None,
        "Time after which a run is killed.",
        default_in_words="the probe's own: 300, on CPU 60",
        example=300,
        ge=1,
        le=DAY,
    )
    dtypes: Annotated[tuple[Literal["float32", "bfloat16"], ...], BeforeValidator(split)] = setting(
        ("float32",),
        "Types of the elements, float32 always among them: it alone is exported. Each more takes as long again.",
        example=["float32", "bfloat16"],
    )
    max_hold_seconds: float = setting(7 * 86400, "Longest hold: `gpumon probe hold`.", ge=1, le=30 * 86400)
    min_baseline_ratio: float | None = setting(
        None,
        "Share of this host's own median bandwidth below which a run is degraded. 0: none is.",
        default_in_words="the probe's own: 0.9, on CPU 0.5",
        example=0.9,
        ge=0,
        le=1,
    )
    min_baseline_spreads: float = setting(
        4, "And by how many spreads of its earlier runs it has to lie below that median.", ge=0
    )
    min_expected_ratio: float = setting(
        0.85, "The same share of the figure that is published for this hardware: docs/probe.md.", ge=0, le=1
    )
    scheduler_gate: Annotated[
        tuple[Annotated[str, AfterValidator(check_argument)], ...],
        BeforeValidator(split_command),
        AfterValidator(check_command),
    ] = setting(
        (),
        "Command that asks the scheduler whether the node is free: exit code 0 is yes. No shell runs it. Where slurmd "
        "or a kubelet is found, nothing runs by schedule without it: docs/probe.md.",
        default_in_words="none",
        example=["/etc/gpumon/slurm-gate"],
    )
    scheduler_gate_timeout_seconds: float = setting(10, "Time in which that command must have answered.", gt=0, le=300)
    nccl_environment: Mapping[
        Annotated[str, AfterValidator(check_nccl_name)],
        Annotated[str, BeforeValidator(number_to_text), AfterValidator(check_argument)],
    ] = setting(
        {}, "NCCL's variables for the ranks; those of the agent are not passed on.", example={"NCCL_DEBUG": "WARN"}
    )

    @field_validator("jitter_seconds")
    @classmethod
    def _jitter_fits_interval(cls, jitter: float | None, info: ValidationInfo) -> float | None:
        """The probe's own is cut to a short interval; what is configured is not changed in silence."""
        interval = info.data.get("interval_seconds") or PROBES[ALL_REDUCE].interval
        if jitter is not None and "interval_seconds" in info.data and jitter > interval:
            words = {"interval": f"{interval:g}", "remedy": f"set it to {interval:g} at most, or the interval to more"}
            raise PydanticCustomError(NEEDS, "is longer than the interval of {interval} s", words)
        return jitter
