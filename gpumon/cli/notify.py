"""`gpumon notify test`: send a test alert to each configured receiver."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.cli.errors import UserError
from gpumon.config.notifications_section import NotificationsSection
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.services.delivery_error import DeliveryError
from gpumon.services.receivers import alertmanagers, example, message_receivers

TEST_SECONDS = 60.0
"""Seconds after which an Alertmanager resolves the test alert."""


def add(parser: CommandParser) -> None:
    examples = ("gpumon notify test", "gpumon notify test email --config.file /etc/gpumon/gpumon.yml")
    parser.set_examples(*examples)
    test = parser.add_action("test", "send a test alert to each receiver", *examples)
    test.add_argument("receiver", nargs="?", metavar="RECEIVER", help="send only to receivers whose name begins so")
    add_flags(test, CONFIG_FILE.name)


def run(args: argparse.Namespace) -> int:
    section = configuration(args).notifications
    sends = [(name, send) for name, send in _sends(section) if name.startswith(args.receiver or "")]
    if not sends:
        names = ", ".join(name for name, _ in _sends(section))
        if not names:
            raise UserError("no receiver is configured: see `notifications` in docs/configuration.md")
        raise UserError(f"there is no receiver {args.receiver!r}; configured are {names}")
    return max(_deliver(name, send) for name, send in sends)


def _sends(section: NotificationsSection) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each configured receiver, with a function that sends it the test alert."""
    alert = replace(example(section.labels), since=time.time())
    for alertmanager in alertmanagers(section):
        yield alertmanager.name, partial(alertmanager.post, [(alert, alert.since + TEST_SECONDS)])
    for receiver in message_receivers(section, source="gpumon://test"):
        yield receiver.name, partial(receiver.deliver, alert, ended=None)


def _deliver(name: str, send: Callable[[], None]) -> int:
    try:
        send()
    except DeliveryError as error:
        print(f"{name}: failed: {error}")
        return 1
    print(f"{name}: delivered")
    return 0
