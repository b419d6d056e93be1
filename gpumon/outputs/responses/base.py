"""The base of all response models, and a decorator that adds a field for each row of a metric table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from typing_extensions import Self

from gpumon.model.reading import KEY_SEPARATOR, Row, Table, rows
from gpumon.outputs.formatting import rfc3339

Document = dict[str, Any]
"""A response of the API as plain JSON values. The status page and the commands read this form."""
Number = int | float
"""A number in JSON. A whole number is an int, so that it is printed without ".0"."""
Timestamp = Annotated[str, BeforeValidator(lambda time: time if isinstance(time, str) else rfc3339(time))]
"""A time in RFC 3339, made from a time in seconds since the epoch if the response is made from an object."""


class ResponseModel(BaseModel):
    """Base of all responses. An absent value is null; only a field with a default may be missing from the JSON."""

    # defer_build: building a model takes time, and most agents send only a few of the responses.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, from_attributes=True)

    @classmethod
    def copied(cls, source: object, **values: Any) -> Self:
        """Return the response with these values; all other fields have the values of the attributes of `source`."""
        return cls(**{name: getattr(source, name) for name in cls.model_fields if name not in values}, **values)

    def document(self) -> Document:
        return self.model_dump(mode="json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """The host name, and the time of a response by the wall clock and by the boot clock."""

    host: str
    wall: float
    boot: float
    """CLOCK_BOOTTIME: seconds since the host was booted."""


Model = TypeVar("Model", bound=ResponseModel)


def timestamp(description: str, attribute: str | None = None) -> Any:
    """Return a pydantic field for a time. `attribute`: where `model_validate` reads it, if not by the field's name."""
    return Field(description=f"{description} RFC 3339, UTC.", validation_alias=attribute)


def metric_rows(*tables: type[Table]) -> Callable[[type[Model]], type[Model]]:
    """Return a class decorator that adds a field, with its description, for each row of these metric tables."""
    fields = {}
    for name, row in (each for table in tables for each in rows(table).items()):
        by_label = f" By {', then '.join(row.labels)}." if row.labels else ""
        description = f"{row.help}{by_label}{' ' + row.note if row.note else ''}"
        fields[name] = (_field_type(row), Field(description=description))
    return with_fields(fields)


def with_fields(fields: Mapping[str, Any]) -> Callable[[type[Model]], type[Model]]:
    """Return a class decorator that adds fields to a response model: a pair of type and default by name."""

    def extend(model: type[Model]) -> type[Model]:
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return extend


def row_values(table: Table) -> Document:
    """Return the value of each row of a metric table, as nested dicts, one level for each label; None if absent."""
    values = {}
    for name, row in rows(type(table)).items():
        value = getattr(table, name)
        if value is not None and not row.identity:
            value = _nest(row, value) if row.labels else _number(value)
        values[name] = value
    return values


def _field_type(row: Row) -> Any:
    if row.identity:
        return str | None
    field_type: Any = Number | None
    for _ in row.labels:
        field_type = dict[str, field_type]
    return field_type | None if row.labels else field_type


def _nest(row: Row, values: Mapping[str, float]) -> Document:
    nested: Document = {}
    for key, value in values.items():
        *outer, last = key.split(KEY_SEPARATOR, len(row.labels) - 1)  # a label may be empty
        level = nested
        for label in outer:
            level = level.setdefault(label, {})
        level[last] = _number(value)
    return nested


def _number(value: float) -> Number | None:
    """Return a number for JSON: an int for a whole number, None for NaN and infinity."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
