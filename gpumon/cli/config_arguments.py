"""Configuration for subcommands: the flags, and the file they and the environment give."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpumon.cli.client import Client
from gpumon.cli.errors import UserError
from gpumon.cli.health_file import agent_address
from gpumon.config import health_file, xid_file
from gpumon.config.load import ConfigurationError, configuration_file, load
from gpumon.config.model import Configuration
from gpumon.config.settings import CONFIG_FILE, FLAGS
from gpumon.health.checks.versions import VERSIONS
from gpumon.health.table import BY_NAME, LIMITS
from gpumon.model.orders import is_recording
from gpumon.sim.profiles import PROFILES


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the table of settings."""
    for flag in FLAGS:
        parser.add_argument(flag.name, help=flag.help.replace("%", "%%"), dest=flag.name, metavar="VALUE")


def reader(chosen: argparse.Namespace) -> Callable[[], Configuration]:
    """Reads the configuration, now and at each reload. Raises ConfigurationError."""
    flags = {flag.name: getattr(chosen, flag.name, None) for flag in FLAGS}
    named = flags.pop(CONFIG_FILE.name)
    path = configuration_file(named, os.environ)
    return lambda: load(
        path,
        flags,
        os.environ,
        versions=VERSIONS,
        limits=LIMITS,
        checks=BY_NAME,
        profiles=PROFILES,
        xid_rows=xid_file.read,
    )


def configuration(chosen: argparse.Namespace) -> Configuration:
    """The configuration in force. Raises UserError with all that is wrong."""
    try:
        return reader(chosen)()
    except ConfigurationError as error:
        raise UserError(f"the configuration is not good:\n{error}") from error


def configuration_to_start(chosen: argparse.Namespace) -> Configuration:
    """The same, for what is about to use it: a recording, or a scenario (which is read again later), is good now."""
    settings = configuration(chosen)
    simulate = settings.simulate
    wrong = wrong_with_simulation(simulate.profile, simulate.scenario) if simulate.profile else ""
    if wrong:
        origin = settings.origin("simulate.scenario" if simulate.scenario else "simulate.profile")
        raise UserError(f"the configuration is not good:\n{origin}: {wrong}")
    return settings


def wrong_with_simulation(profile: str, scenario: Path | None) -> str:
    """Asked in a process of its own: what reads these files knows NVML's C functions, and the daemon does not."""
    if scenario is None and not is_recording(profile):
        return ""
    question = [sys.executable, "-m", "gpumon.sim.check", profile, *([str(scenario)] if scenario else [])]
    asked = subprocess.run(question, check=False, capture_output=True, text=True)
    return asked.stderr.strip() if asked.returncode else ""


def client(chosen: argparse.Namespace) -> Client:
    """Return a client of the agent that is meant. Raises UserError."""
    return meant(chosen)[0]


def meant(chosen: argparse.Namespace) -> tuple[Client, Configuration, Path]:
    """Return a client of the agent that is meant, the configuration in force, and the store of both. Raises UserError.

    Address and store are the configured ones, else those that the agent has written to its health file.
    """
    settings = configuration(chosen)
    address, store = settings.web.address, settings.store.path
    configured = settings.origin("store.path") != "default"
    running = agent_address(health_file.find(settings.health.file, store if configured else None, os.environ))
    if running is not None:
        if settings.origin("web.listen_address") == "default" or not address[1]:
            address = running[0]
        if not configured:
            store = Path(running[1])
    return Client(*address, settings.web.token_file), settings, store
