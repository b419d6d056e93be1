"""The error that every command may raise, and the exit codes for it, for invalid arguments and for ^C."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

USAGE_ERROR = 2


class UserError(Exception):
    """Raised for an error that the user can correct. The message states what is wrong and what to do."""


def exit_code(program: str, run: Callable[[], int]) -> int:
    """Run a command and return its exit code: USAGE_ERROR after a UserError, which is printed, and 130 after ^C."""
    try:
        return int(run())
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # the reader has ended, as in `gpumon metrics | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
