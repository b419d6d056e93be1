"""Replaces pynvml's NVML library by the simulated library in each Python program that `gpumon-sim` starts.

Python runs this module at its start, also in child processes that use another virtual environment. To
these it adds only three packages that can be imported: gpumon, gpumon_sim and, if missing, the YAML reader.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # other environments may have an old Python
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

SIMULATION = "GPUMON_SIMULATION"
"""Environment variable with a JSON object: the profile, the scenario, the folders of these packages."""
BINDINGS = ("pynvml", "pynvml.nvml")
"""Modules that may have pynvml's library object `nvmlLib`. The second belongs to the older distribution `pynvml`."""
OLDEST = 3, 11
HERE = str(Path(__file__).parent)


class Finder:
    """Import finder for the packages in `folders`, which maps each package name to the package's folder.

    It does not find other packages that are installed beside these.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, str(Path(folder, "__init__.py")), submodule_search_locations=[folder]
        )


class BindingsFinder:
    """Import finder for pynvml. It imports pynvml by the other finders, then replaces the object `nvmlLib` in it."""

    def __init__(self, simulation: dict[str, str]) -> None:
        self._simulation = simulation

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in BINDINGS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _SimulationLoader(spec.loader, self._simulation)
                return spec
        return None


class _SimulationLoader(importlib.abc.Loader):
    def __init__(self, loader: Any, simulation: dict[str, str]) -> None:
        self._loader = loader
        self._simulation = simulation

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if hasattr(module, "nvmlLib"):
            vars(module)["nvmlLib"] = _library(self._simulation)


def _library(simulation: dict[str, str]) -> object:
    if sys.version_info < OLDEST:
        raise ImportError("gpumon-sim: the simulated node needs Python 3.11 or later, and this is " + sys.version)
    from gpumon_sim.open_library import open_simulated  # noqa: PLC0415 - only programs that import pynvml need it

    scenario = simulation.get("scenario")
    node = open_simulated(
        simulation["profile"],
        scenario=Path(scenario) if scenario else None,
        epoch=float(simulation["epoch"]),
        trace=Path(simulation["trace"]) if simulation.get("trace") else None,
    )
    return node.library


def _install() -> None:
    simulation = json.loads(os.environ[SIMULATION])
    sys.meta_path.insert(0, BindingsFinder(simulation))
    sys.meta_path.insert(0, Finder({name: simulation[name] for name in ("gpumon", "gpumon_sim")}))
    sys.meta_path.append(Finder({"yaml": simulation["yaml"]}))


def _run_shadowed_module() -> None:
    """Run the `sitecustomize` module of the Python environment, if any, because this module shadows it."""
    sys.path[:] = [folder for folder in sys.path if folder != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if SIMULATION in os.environ:
    _install()
    _run_shadowed_module()
