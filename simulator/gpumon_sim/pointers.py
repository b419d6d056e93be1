"""A replacement for pynvml's `CDLL` object. Its attributes are C function pointers that call Python functions."""

from __future__ import annotations

import ctypes
import logging
import time
from _ctypes import FUNCFLAG_CDECL, CFuncPtr
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpumon_sim.codes import Code, Refusal
from gpumon_sim.trace import Trace

_logger = logging.getLogger(__name__)


class Function(CFuncPtr):
    """A C function pointer like those of ctypes.CDLL: it returns an int, and its argument types are not declared."""

    _flags_ = FUNCFLAG_CDECL
    _restype_ = ctypes.c_int


class Entry(NamedTuple):
    """The Python implementation of one C function.

    `call` returns the C function's result, or None for success, or raises Refusal with the return code.
    """

    call: Callable[..., Any]
    takes: Sequence[Any]
    """C types of the arguments: integers, and addresses (None for NULL)."""
    gives: Any = ctypes.c_int


class SimLibrary:
    """The simulated NVML library, for `pynvml.nvmlLib`. Its attributes are C functions, created on first access.

    `find` returns the implementation of a C function by name, or raises AttributeError if the driver lacks it.
    """

    def __init__(self, find: Callable[[str], Entry], trace: Trace) -> None:
        self._find = find
        self._trace = trace
        self._callbacks: list[Any] = []

    def __getattr__(self, name: str) -> Function:
        entry = self._find(name)
        callback = ctypes.CFUNCTYPE(entry.gives, *entry.takes)(self._wrap(name, entry.call))
        self._callbacks.append(callback)  # keep the callback: its address is only valid while it exists
        function = Function(ctypes.cast(callback, ctypes.c_void_p).value or 0)
        setattr(self, name, function)
        return function

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_traced(*arguments: Any) -> Any:
            started, cpu_started = time.perf_counter(), time.thread_time()
            self._trace.count_call(name)
            try:
                answer = call(*arguments)
            except Refusal as refusal:
                return refusal.code
            except Exception:
                # A C caller cannot receive a Python exception: ctypes only prints it, and the return code is undefined.
                _logger.exception("simulated %s", name)
                return Code.UNKNOWN
            else:
                return Code.SUCCESS if answer is None else answer
            finally:
                self._trace.add_duration(time.perf_counter() - started, time.thread_time() - cpu_started)

        return call_traced
