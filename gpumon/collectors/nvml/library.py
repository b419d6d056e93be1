"""Call NVML through pynvml. Show each call on the call page, and raise each failure as an NvmlError.

No exception of pynvml leaves this module: pynvml's exceptions are not hashable and fail on comparison, and its
NVMLLibraryMismatchError does not derive from NVMLError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pynvml

from gpumon.model.call_progress import Writer

log = logging.getLogger("gpumon.collectors.nvml")

T = TypeVar("T")

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT = 6, 7, 9, 10
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 12, 13
GPU_IS_LOST, RESET_REQUIRED, OPERATING_SYSTEM, VERSION_MISMATCH = 15, 16, 17, 18
VGPU_ECC_NOT_SUPPORTED, ARGUMENT_VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND, UNKNOWN = 22, 25, 26, 28, 999

_PREFIX = "NVML_ERROR_"
ERROR_NAMES: Mapping[int, str] = {
    code: constant.removeprefix(_PREFIX).title().replace("_", "")
    for constant, code in vars(pynvml).items()
    if constant.startswith(_PREFIX)
}
"""Name of each NVML error code, from pynvml's constant: "GpuIsLost" for NVML_ERROR_GPU_IS_LOST."""

UNSUPPORTED = frozenset(
    {
        INVALID_ARGUMENT,
        NOT_SUPPORTED,
        LIBRARY_NOT_FOUND,
        FUNCTION_NOT_FOUND,
        VGPU_ECC_NOT_SUPPORTED,
        ARGUMENT_VERSION_MISMATCH,
        DEPRECATED,
    }
)
"""Error codes of unsupported calls. They are not repeated until the GPU is reopened or its capabilities change."""

TOO_NEW = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
"""Error codes that an older driver returns for a newer function or a newer version of a struct."""

GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
"""Error codes that are returned after the driver was unloaded. All device handles are then invalid."""


class NvmlError(Exception):
    """Raised if a driver call returns an error, or if its function does not exist. `code` is NVML's error code.

    `call`: name of the function; if only one field of a call failed, `field` and the name of the field.
    """

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call}: {error_name(code)}")
        self.code = code
        self.call = call

    @property
    def name(self) -> str:
        return error_name(self.code)


def error_name(code: int) -> str:
    """Return the name of an NVML error code as used in label values; `Code<number>` for an unlisted code."""
    return ERROR_NAMES.get(code, f"Code{code}")


class Library:
    """Calls NVML through pynvml.

    Shows each call in shared memory (the call page), so that the daemon detects a call that hangs.
    """

    def __init__(self, page: Writer) -> None:
        self._page = page
        self._variants: dict[str, int] = {}
        self.driver: tuple[int, ...] = ()
        """Version of the driver; empty until NVML has been initialised."""

    def call(self, function: str, *arguments: Any, bus_id: str = "", note: str = "") -> Any:
        """Call `pynvml.<function>` and return its result. The call may never return.

        Raise NvmlError if the call fails or the function does not exist. During the call, the call page shows `bus_id`,
        that of the GPU, and the function's name followed by `note`.
        """
        target = getattr(pynvml, function, None)
        if target is None:  # the bindings are older than the function
            raise NvmlError(FUNCTION_NOT_FOUND, function)
        self._page.enter(function + note, bus_id)
        try:
            return target(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(int(error.value), function) from None
        except pynvml.NVMLLibraryMismatchError:
            raise NvmlError(FUNCTION_NOT_FOUND, function) from None
        finally:
            self._page.leave()

    def raw(self, function: str, *arguments: Any, bus_id: str) -> None:
        """Call a C function of NVML with gpumon's own structs, because pynvml's have changed size between versions.

        Raise NvmlError if the function fails or does not exist.
        """
        self._page.enter(function, bus_id)
        try:
            code = getattr(pynvml.nvmlLib, function)(*arguments)
        except AttributeError:
            code = FUNCTION_NOT_FOUND
        finally:
            self._page.leave()
        if code:
            raise NvmlError(code, function)

    def newest(self, function: str, variants: Sequence[Callable[[], T]]) -> T:
        """Call the newest variant of `function` that this driver supports, and return its result.

        `variants`: calls with versioned structs or functions, the newest first. A variant that turned out to be
        unsupported is not called again, unless it is the last. Raise NvmlError if the call fails for another reason, or
        if no variant is supported. `function`: name under which the supported variant is remembered.
        """
        for place in range(self._variants.get(function, 0), len(variants) - 1):
            try:
                return variants[place]()
            except NvmlError as error:
                if error.code not in TOO_NEW:
                    raise
                log.info(
                    "this driver needs an older version of the call", extra={"function": function, "error": error.name}
                )
                self._variants[function] = place + 1
        return variants[-1]()
