"""The faults of the simulated node: `table.py` has all of them, the other modules their rows by subject."""
