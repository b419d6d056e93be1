"""What the shapes of all documents are made of, for the OpenAPI page: a row of a metric table describes itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from gpumon.model.reading import Row, Table, rows

MOMENT = "RFC 3339, UTC."


class Shape(BaseModel):
    """Every key is always present; what is not known is null."""

    model_config = ConfigDict(extra="forbid", strict=True)


def moment(text: str) -> Any:
    return Field(description=f"{text} {MOMENT}")


def _type_of(row: Row) -> Any:
    if row.identity:
        return str | None
    shape: Any = float | None
    for _ in row.labels:
        shape = dict[str, shape]
    return shape | None if row.labels else shape


def _described(row: Row) -> str:
    by = f" By {', then '.join(row.labels)}." if row.labels else ""
    return f"{row.help}{by}{' ' + row.note if row.note else ''}"


def from_table(name: str, base: type[Shape], *tables: type[Table]) -> type[Shape]:
    """A shape with every row of these tables beside what `base` has."""
    fields: dict[str, Any] = {
        attribute: (_type_of(row), Field(description=_described(row)))
        for table in tables
        for attribute, row in rows(table).items()
    }
    return create_model(name, __base__=base, **fields)
