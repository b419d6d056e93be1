"""Dashboards for Grafana: written here, generated as JSON beside it."""
