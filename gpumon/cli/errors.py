"""The error that every subcommand may raise."""


class UserError(Exception):
    """An error that the user can correct; the message states what is wrong and what to do."""
