"""Outputs of a Report: Prometheus text, JSON responses, and text for a terminal."""
