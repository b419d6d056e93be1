"""The error that every subcommand may raise, and the exit code for it and for invalid arguments."""

USAGE_ERROR = 2


class UserError(Exception):
    """Raised for an error that the user can correct. The message states what is wrong and what to do."""
