"""The configuration of subcommands, from their flags, the environment and the file."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from gpumon import DEFAULT_PORT
from gpumon.cli.client import Client
from gpumon.cli.errors import UserError
from gpumon.cli.health_file import agent_paths
from gpumon.config import default_paths
from gpumon.config.configuration_error import ConfigurationError
from gpumon.config.load import configuration_file, load
from gpumon.config.model import Configuration
from gpumon.config.settings_table import CONFIG_FILE, FLAGS
from gpumon.model.orders import is_recording

CLIENT_FLAGS = (CONFIG_FILE.name, "--web.socket", "--store.path", "--health.file")
"""Settings that lead to the agent of this host."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the table of settings."""
    group = parser.add_argument_group("settings", "These override the environment and the file: docs/configuration.md.")
    for flag in FLAGS:
        group.add_argument(flag.name, help=flag.help.replace("%", "%%"), dest=flag.name, metavar="VALUE")


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that ask the agent."""
    group = parser.add_argument_group("agent", "Without these flags: the agent of this host.")
    group.add_argument("--url", type=_url, help=f"ask the agent at this URL, such as http://gpu-17:{DEFAULT_PORT}")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="token for changes at --url")
    for flag in FLAGS:
        if flag.name in CLIENT_FLAGS:
            group.add_argument(flag.name, help=flag.help.replace("%", "%%"), dest=flag.name, metavar="PATH")


def reader(args: argparse.Namespace) -> Callable[[], Configuration]:
    """Return a function that reads the configuration, now and at each reload. It raises ConfigurationError."""
    flags = {flag.name: getattr(args, flag.name, None) for flag in FLAGS}
    named = flags.pop(CONFIG_FILE.name)
    path = configuration_file(named, os.environ)
    return lambda: load(path, flags, os.environ, profiles=profile_names)


def profile_names() -> list[str]:
    """Return the nodes that can be simulated."""
    from gpumon.sim.profiles import PROFILES  # noqa: PLC0415 - a real host has no use for the simulation

    return sorted(PROFILES)


def configuration(args: argparse.Namespace) -> Configuration:
    """Return the configuration. Raises UserError that lists every mistake."""
    try:
        return reader(args)()
    except ConfigurationError as error:
        raise UserError(f"the configuration is invalid:\n{error}") from error


def configuration_to_start(args: argparse.Namespace) -> Configuration:
    """Return the configuration after reading its recording and scenario too. Raises UserError."""
    settings = configuration(args)
    simulate = settings.simulate
    wrong = simulation_problem(simulate.profile, simulate.scenario) if simulate.profile else ""
    if wrong:
        origin = settings.origin("simulate.scenario" if simulate.scenario else "simulate.profile")
        raise UserError(f"the configuration is invalid:\n{origin}: {wrong}")
    return settings


def simulation_problem(profile: str, scenario: Path | None) -> str:
    """Return what is wrong with a recording or scenario; empty if nothing is.

    A process of its own reads them, because the reader imports NVML's C functions and this process must not.
    """
    if scenario is None and not is_recording(profile):
        return ""
    command = [sys.executable, "-I", "-m", "gpumon.sim.check_scenario", profile, *([str(scenario)] if scenario else [])]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    return checked.stderr.strip() if checked.returncode else ""


def client(args: argparse.Namespace) -> Client:
    """Return a client of the agent. Raises UserError."""
    return find_agent(args)[0]


def find_agent(args: argparse.Namespace) -> tuple[Client, Configuration, Path]:
    """Return a client of the agent, the configuration in force, and the store of both. Raises UserError.

    Socket and store are the configured ones, else those that the agent has written to its health file.
    """
    settings = configuration(args)
    store, named = settings.store.path.absolute(), settings.origin("store.path") != "default"
    running = agent_paths(default_paths.find_health_file(settings.health.file, store if named else None, os.environ))
    if running is not None and not named:
        store = Path(running[1])
    socket = running[0] if running is not None else default_paths.default_socket(store, os.environ)
    address = args.url or settings.web.socket or Path(socket)
    return Client(address, args.token_file), settings, store


def _url(text: str) -> str:
    """Return the URL without a path. Raises ArgumentTypeError."""
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL: write it as http://gpu-17:{DEFAULT_PORT}")
    return f"{url.scheme}://{url.netloc}"
