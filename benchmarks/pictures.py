"""`make pictures`: pictures of the dashboards with the data of a simulated fleet. Writes docs/dashboards/."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dashboard_fleet import DashboardFleet

from dashboards.answers import Source
from dashboards.generate import DASHBOARDS
from dashboards.panels import Dashboard
from dashboards.picture import COLUMN, height, page

PICTURES = Path(__file__).parents[1] / "docs" / "dashboards"
INTERVAL = 5
MINUTES = 10.0
POINTS = 150
CHROMIUM = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
CHOSEN = {
    "gpumon-node": {"instance": "faulty"},
    "gpumon-gpu": {"instance": "faulty", "gpu": "4"},
}
"""Values of the variables in the pictures of dashboards about one node or GPU."""


def main(arguments: list[str]) -> None:
    """Run the fleet, wait until its counters have a history, and draw each dashboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="history in the pictures (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures (default: docs/dashboards)")
    parser.add_argument("--healthy", action="store_true", help="draw a fleet without faults")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        DashboardFleet(Path(folder), INTERVAL).up(broken=not options.healthy) as fleet,
    ):
        started = time.time()
        print(f"{fleet.url}: {options.minutes:g} minutes of history")
        time.sleep(60 * options.minutes)
        for dashboard in DASHBOARDS:
            _draw(dashboard, fleet, started, options.out)


def _draw(dashboard: Dashboard, fleet: DashboardFleet, started: float, folder: Path) -> None:
    now = time.time()
    source = Source(
        url=fleet.url,
        start=started,
        end=now,
        step=(now - started) / POINTS,
        scrape_interval=fleet.interval,
        variables=CHOSEN.get(dashboard.uid, {}),
    )
    picture = folder / f"{dashboard.uid}.png"
    with tempfile.TemporaryDirectory() as profile:
        file = Path(profile) / "dashboard.html"
        file.write_text(page(dashboard, source), encoding="utf-8")
        size = f"--window-size={24 * COLUMN + 24},{height(dashboard)}"
        flags = [f"--user-data-dir={profile}", size, f"--screenshot={picture}", file.as_uri()]
        subprocess.run([*CHROMIUM, *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
