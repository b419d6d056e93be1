"""The error of a notification that was not delivered."""

from __future__ import annotations


class DeliveryError(Exception):
    """Raised if a message was not delivered. `refused` is True if the message must not be sent again."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
