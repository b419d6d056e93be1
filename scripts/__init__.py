"""Programs that `make` runs."""
