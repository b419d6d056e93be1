"""`gpumon notify test`: send a test alert to each configured receiver."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.config.notifications_section import NotificationsSection
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.services.delivery_child import deliver_now
from gpumon.services.receivers import Orders, alertmanagers, example, message_receivers

TEST_SECONDS = 60.0
"""Seconds after which an Alertmanager resolves the test alert."""


def add(parser: CommandParser) -> None:
    examples = ("gpumon notify test", "gpumon notify test apprise --config.file /etc/gpumon/gpumon.yml")
    parser.set_examples(*examples)
    test = parser.add_action("test", "send a test alert to each receiver", *examples)
    test.add_argument("receiver", nargs="?", metavar="RECEIVER", help="send only to receivers whose name begins so")
    add_flags(test, CONFIG_FILE.name)


def run(args: argparse.Namespace) -> int:
    section = configuration(args).notifications
    orders = dict(_orders(section))
    chosen = [name for name in orders if name.startswith(args.receiver or "")]
    if not chosen:
        names = ", ".join(orders)
        if not names:
            raise UserError("no receiver is configured: see `notifications` in docs/configuration.md")
        raise UserError(f"there is no receiver {args.receiver!r}; configured are {names}")
    code = 0
    for name in chosen:
        error = deliver_now(orders[name]).error
        print(f"{name}: delivered" if error is None else f"{name}: failed: {error}")
        code = code if error is None else 1
    return code


def _orders(section: NotificationsSection) -> Iterator[tuple[str, Orders]]:
    """Yield the name of each configured receiver, with the orders that send it the test alert."""
    alert = replace(example(section.labels), since=time.time())
    for alertmanager in alertmanagers(section):
        yield alertmanager.name, alertmanager.orders([(alert, alert.since + TEST_SECONDS)])
    for receiver in message_receivers(section, source="gpumon://test"):
        yield receiver.name, receiver.orders(alert, ended=None)
