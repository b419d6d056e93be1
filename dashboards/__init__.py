"""Dashboards for Grafana. `make generate` writes the JSON file beside these modules."""
