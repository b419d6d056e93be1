"""Measurements that are started by hand: `make bench`, `make soak`, `make truth`. They start agents as the tests do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
