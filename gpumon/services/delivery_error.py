"""The error of a notification that was not delivered."""

from __future__ import annotations


class DeliveryError(Exception):
    """Raised if a message was not delivered. `refused`: it must not be sent again. `partly`: some recipients got it."""

    def __init__(self, text: str, *, refused: bool = False, partly: bool = False) -> None:
        super().__init__(text)
        self.refused, self.partly = refused, partly
