"""NVML's return codes, and the exception that makes a simulated NVML function return an error code."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """NVML's return codes (nvmlReturn_t)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    UNKNOWN = 999

    @property
    def words(self) -> str:
        """Return the name of the code in words, such as "Gpu is lost".

        The simulated nvmlErrorString returns this text. A real driver has other texts.
        """
        return self.name.replace("_", " ").capitalize()


class Refusal(Exception):  # noqa: N818 - it carries a return code, and is no error of the simulation
    """Raised by a simulated NVML function to make the C call return an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
