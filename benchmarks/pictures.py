"""`make pictures`: pictures of the dashboards with the data of a simulated fleet, and of an agent's page.

Writes docs/dashboards/.
"""

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
MINUTES = 14.0
"""Minutes of history: IMEX that does not run is reported after ten."""
PAGE_SIZE = (1280, 2700)
POINTS = 150
CHROMIUM = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
CHOSEN = {
    "gpumon-node": {"instance": "faulty"},
    "gpumon-gpu": {"instance": "faulty", "gpu": "4"},
    "gpumon-job": {"job_id": "slurm/1000", "instance": "faulty|rack|sim-1"},
}
"""Values of the variables in the pictures of dashboards about one node, GPU or job."""


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
        DashboardFleet(Path(folder), INTERVAL, broken=not options.healthy).up() as fleet,
    ):
        started = time.time()
        print(f"{fleet.url}: {options.minutes:g} minutes of history")
        time.sleep(60 * options.minutes)
        for dashboard in DASHBOARDS:
            _draw(dashboard, fleet, started, options.out)
        _shoot(f"http://127.0.0.1:{fleet.agents['faulty'].port}/", PAGE_SIZE, options.out / "page.png")


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
    with tempfile.TemporaryDirectory() as written:
        file = Path(written) / "dashboard.html"
        file.write_text(page(dashboard, source), encoding="utf-8")
        _shoot(file.as_uri(), (24 * COLUMN + 24, height(dashboard)), folder / f"{dashboard.uid}.png")


def _shoot(url: str, size: tuple[int, int], picture: Path) -> None:
    """Save a picture of a web page. `size`: width and height in pixels."""
    with tempfile.TemporaryDirectory() as profile:
        flags = [f"--user-data-dir={profile}", "--window-size={},{}".format(*size), "--timeout=10000"]
        command = [*CHROMIUM, *flags, f"--screenshot={picture}", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
