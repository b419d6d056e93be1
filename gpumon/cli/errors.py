"""The subcommands of `gpumon`, one file a concern. Each has `add(parser)` and functions that return an exit code."""


class UserError(Exception):
    """Something the user can mend; the message names it and says how."""
