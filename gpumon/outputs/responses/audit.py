"""Responses about the audit: the requests to change the state of the agent or to start work."""

from __future__ import annotations

from pydantic import Field

from gpumon.outputs.responses.base import ResponseModel, Timestamp, timestamp


class AuditEntryResponse(ResponseModel):
    """One request to change the state of the agent or to start work, which may have failed (see `status`)."""

    time: Timestamp | None = timestamp("When the request was answered.", attribute="wall")
    request: str = Field(description="Method and path with parameters, the signal, or the marker file.")
    reason: str = Field(description="Reason or note that the client gave; empty without one.")
    client: str = Field(description="`local` for the unix socket, `signal`, `marker`, else the address.")
    uid: int | None = Field(description="User of a local client, or owner of the marker file; else null.")
    login_uid: int | None = Field(description="User who logged in to the session of a local client, also after sudo.")
    status: int | None = Field(description="HTTP status of the answer; null for a signal or the marker file.")


class AuditResponse(ResponseModel):
    """Requests to change the state of the agent or to start work, newest first.

    These are the authorized HTTP requests other than GET, HEAD and OPTIONS, whatever the status of the answer, SIGHUP,
    and uses of the marker file.
    """

    entries: list[AuditEntryResponse]
