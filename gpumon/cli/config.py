"""`gpumon config check` validates the configuration; `gpumon config show` prints it."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_flags, configuration_to_start, web_problem
from gpumon.config.model import Configuration
from gpumon.config.redact import redact
from gpumon.config.settings_table import show


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon config check --config.file /etc/gpumon/gpumon.yml", "gpumon config show")
    for name, meaning in (("check", "validate the configuration"), ("show", "print the effective configuration")):
        add_flags(
            parser.add_action(name, meaning, f"gpumon config {name}", f"gpumon config {name} --config.file new.yml")
        )


def run(args: argparse.Namespace) -> int:
    settings = configuration_to_start(args)
    if args.action == "check" and (wrong := web_problem(settings)):
        raise UserError(f"the configuration is invalid:\n{wrong}")
    if args.action == "check":
        print(*(f"warning: {text}\n" for text in _missing(settings)), sep="", end="", file=sys.stderr)
    print("the configuration is valid\n" if args.action == "check" else show(settings), end="")
    return 0


def _missing(settings: Configuration) -> Iterator[str]:
    files = (name for name in type(settings.notifications).model_fields if name.endswith(("_file", "_socket")))
    others = ("probe.python", "probe.scheduler_gate", "kernel_log.path")
    named = [(name, settings.value(name)) for name in (*others, *(f"notifications.{name}" for name in files))]
    urls = settings.notifications.apprise_urls
    named += [("notifications.apprise_urls", url) for url in urls if url.startswith("/")]
    for name, value in named:
        path = shutil.which(value[0]) or value[0] if value and isinstance(value, tuple) else value
        try:
            if path and settings.origin(name) != "default":
                Path(path).stat()
        except OSError as error:
            yield f"{settings.origin(name)}: {name}: {redact(name, path)}: {error.strerror}"
    if urls and importlib.util.find_spec("apprise") is None:
        origin = settings.origin("notifications.apprise_urls")
        yield f"{origin}: notifications.apprise_urls: the package apprise is missing: install gpumon[notifications]"
