"""The section `probe` of the configuration: the settings of the probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gpumon.config.setting import (
    NEEDS,
    ConfigurationSection,
    SomePath,
    check_argument,
    check_command,
    check_program,
    matching,
    number_to_text,
    setting,
    split,
    split_command,
)
from gpumon.probe.core.probes import ALL_REDUCE, DTYPE, ELEMENT_BYTES, PROBES
from gpumon.probe.core.settings import FORMS, check_schedule, parse_schedule

DAY, YEAR = 86400, 366 * 86400
"""A day and a year in seconds: maximum values of settings, because far longer times would overflow timers."""


class ProbeSection(ConfigurationSection):
    """Settings of the probes."""

    enabled: bool = setting(default=True, meaning="Allow probe runs, scheduled and on request.")
    python: Annotated[SomePath | None, AfterValidator(check_program)] = setting(
        None,
        "Python interpreter with torch.",
        default_in_words="the interpreter of the agent",
        example="/opt/torch/bin/python",
    )
    schedules: Mapping[
        Annotated[str, matching("|".join(PROBES), f"must be the name of a probe: {', '.join(PROBES)}")],
        Annotated[str, BeforeValidator(number_to_text), AfterValidator(check_schedule)],
    ] = setting(
        {},
        f"When probes run by schedule, by name: {FORMS}. Crontab text has minute, hour, day, month and weekday, in the "
        "time zone of the host.",
        default_in_words="allreduce: every interval_seconds",
        example={"copy": "0 3 * * sun"},
    )
    interval_seconds: float | None = setting(
        None, "Interval of scheduled runs of the all-reduce.", default_in_words="21600", example=21600, ge=10, le=YEAR
    )
    jitter_seconds: float | None = setting(
        None,
        "Maximum random delay of each scheduled run.",
        default_in_words="600",
        example=600,
        ge=0,
        le=YEAR,
    )
    initial_delay_seconds: float | None = setting(
        None,
        "Delay of the first run after the start.",
        default_in_words="60, on a simulated node 5",
        example=60,
        ge=0,
        le=YEAR,
    )
    min_idle_seconds: float | None = setting(
        None,
        "Time that the GPUs must have been idle before a scheduled run. A run that is due waits for it.",
        default_in_words="600, on a simulated node 0",
        example=600,
        ge=0,
        le=YEAR,
    )
    allow_partial: bool = setting(
        default=False,
        meaning="Allow runs on the idle GPUs alone if at least two are idle. They measure only the ring algorithm.",
    )
    algorithms: Annotated[tuple[Literal["default", "ring"], ...], BeforeValidator(split)] = setting(
        (),
        "NCCL algorithms that a run on all GPUs measures: `default` is the choice of NCCL, `ring` does not use "
        "NVLink SHARP.",
        default_in_words="both; `ring` in a fabric of several nodes",
        example=["default", "ring"],
    )
    deadline_seconds: float | None = setting(
        None,
        "Time after which a run is killed.",
        default_in_words="300, on CPU 60",
        example=300,
        ge=1,
        le=DAY,
    )
    dtypes: Annotated[
        tuple[Literal[tuple(ELEMENT_BYTES)], ...],  # type: ignore[valid-type]
        BeforeValidator(split),
    ] = setting(
        (DTYPE,),
        f"Element types in which bandwidths are measured. {DTYPE} is always measured; it alone is exported. Each type "
        "adds the time of one measurement.",
        example=list(ELEMENT_BYTES),
    )
    max_hold_seconds: float = setting(7 * 86400, "Maximum length of a hold (`gpumon probe hold`).", ge=1, le=30 * 86400)
    min_baseline_ratio: float | None = setting(
        None,
        "Minimum bandwidth as a ratio of the median of this host's earlier runs. 0 disables the comparison.",
        default_in_words="0.9, on CPU 0.5",
        example=0.9,
        ge=0,
        le=1,
    )
    min_baseline_spreads: float = setting(
        4, "Minimum distance below that median, in spreads of the earlier runs, for a run to be degraded.", ge=0
    )
    min_expected_ratio: float = setting(
        0.85, "Minimum bandwidth as a ratio of the published figure for this hardware: docs/probe.md.", ge=0, le=1
    )
    scheduler_gate: Annotated[
        tuple[Annotated[str, AfterValidator(check_argument)], ...],
        BeforeValidator(split_command),
        AfterValidator(check_command),
    ] = setting(
        (),
        "Command that asks the scheduler whether the node is free, which exit code 0 means. It runs without a shell. "
        "On a host with slurmd or a kubelet no scheduled run starts without it: docs/probe.md.",
        default_in_words="none",
        example=["/etc/gpumon/slurm-gate"],
    )
    scheduler_gate_timeout_seconds: float = setting(10, "Timeout of that command.", gt=0, le=300)
    nccl_environment: Mapping[
        Annotated[str, matching(r"NCCL_[A-Za-z0-9_]+", "must be the name of an NCCL variable, NCCL_...")],
        Annotated[str, BeforeValidator(number_to_text), AfterValidator(check_argument)],
    ] = setting(
        {}, "NCCL variables for the ranks, which do not inherit those of the agent.", example={"NCCL_DEBUG": "WARN"}
    )

    @field_validator("jitter_seconds")
    @classmethod
    def _jitter_fits_interval(cls, jitter: float | None, info: ValidationInfo) -> float | None:
        interval = info.data.get("interval_seconds") or parse_schedule(PROBES[ALL_REDUCE].schedule).max_interval
        if jitter is not None and "interval_seconds" in info.data and jitter > interval:
            words = {"interval": f"{interval:g}", "remedy": f"set it to at most {interval:g}, or increase the interval"}
            raise PydanticCustomError(NEEDS, "is longer than the interval of {interval} s", words)
        return jitter
