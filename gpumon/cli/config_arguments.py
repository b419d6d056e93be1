"""Flags that several subcommands have, and functions that build the configuration, or a client, from the flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gpumon import DEFAULT_PORT
from gpumon.cli.client import TIMEOUT_SECONDS, Client
from gpumon.cli.command_parser import UserError
from gpumon.collectors.node_source import NodeSource, node_source
from gpumon.config import default_paths
from gpumon.config.configuration_error import ConfigurationError
from gpumon.config.load import configuration_file, load
from gpumon.config.model import Configuration
from gpumon.config.settings_table import CONFIG_FILE, FLAGS
from gpumon.model.orders import SimulationError


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add a flag for each setting; if `names` has flags, such as "--config.file", only these."""
    group = parser.add_argument_group("settings", "These override the environment and the file: docs/configuration.md.")
    for flag in FLAGS:
        if not names or flag.name in names:
            group.add_argument(flag.name, help=flag.help.replace("%", "%%"), dest=flag.name, metavar="VALUE")


def add_client_flags(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags --json, --socket, --url and --token-file for a command that sends requests to an agent.

    Return the group of the flags that name what to ask.
    """
    parser.add_argument("--json", action="store_true", help="print the response as JSON")
    group = parser.add_argument_group("agent", "Without these flags: the running agent of this host.")
    address = group.add_mutually_exclusive_group()
    address.add_argument("--socket", type=Path, metavar="PATH", help="unix socket of the agent (its web.socket)")
    address.add_argument("--url", type=url, help=f"ask the agent at this URL, such as http://gpu-17:{DEFAULT_PORT}")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="token for --url: for changes, or for reading")
    return address


def add_reason_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="why; kept in the audit log (/api/v1/audit)")


def reader(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Callable[[], Configuration]:
    """Return a function that loads the configuration from flags, environment and file, or raises ConfigurationError."""
    flags = {flag.name: getattr(args, flag.name, None) for flag in FLAGS}
    named = flags.pop(CONFIG_FILE.name)
    path = configuration_file(named, environ)
    return lambda: load(path, flags, environ, profiles=profile_names)


def profile_names() -> Collection[str]:
    """Return the names of the profiles that can be simulated. Raise UserError if no simulator is installed."""
    return _node_source().profiles()


def _node_source() -> NodeSource:
    try:
        return node_source()
    except SimulationError as error:
        raise UserError(str(error)) from error


def configuration(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Configuration:
    """Return the configuration from flags, environment and file. Raise UserError with all its problems."""
    try:
        return reader(args, environ)()
    except ConfigurationError as error:
        raise UserError(f"the configuration is invalid:\n{error}") from error


def configuration_to_start(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Configuration:
    """Return the configuration. Raise UserError if the configuration, or its recording or scenario, is invalid."""
    settings = configuration(args, environ)
    simulate = settings.simulate
    wrong = _node_source().problem(simulate.profile, simulate.scenario) if simulate.profile else ""
    if wrong:
        origin = settings.origin("simulate.scenario" if simulate.scenario else "simulate.profile")
        raise UserError(f"the configuration is invalid:\n{origin}: {wrong}")
    return settings


def web_problem(settings: Configuration) -> str:
    """Return why the agent cannot use web.config_file, or a file that it names; an empty string if it can."""
    from gpumon.server.web_config import WebConfigError, read, tls_context  # noqa: PLC0415 - few commands need ssl

    path = settings.web.config_file
    try:
        if path is not None:
            tls_context(path, read(path))
    except WebConfigError as error:
        return f"{settings.origin('web.config_file')}: {error}"
    return ""


def client(args: argparse.Namespace, timeout: float = TIMEOUT_SECONDS) -> Client:
    """Return a client for the agent that the flags name, else for this host's. UserError if these are invalid."""
    if args.token_file is not None and args.url is None:
        raise UserError("--token-file goes with --url: the agent of this host needs no token")
    return Client(args.url or args.socket or local_socket(configuration(args)), args.token_file, timeout)


def local_socket(settings: Configuration) -> Path:
    """Return the path of the agent's unix socket: as configured, else as found by `default_paths.find_socket`."""
    if settings.web.socket is not None:
        return settings.web.socket
    configured = settings.origin("store.path") != "default"
    return Path(default_paths.find_socket(settings.store.path.absolute(), os.environ, configured=configured))


def url(text: str) -> str:
    """Return the URL `text` without query, fragment and final slash. Raise ArgumentTypeError if it is invalid."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # the port, or the brackets of an IPv6 address
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL: write it as http://gpu-17:{DEFAULT_PORT}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
