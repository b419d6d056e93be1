"""gpumon: a GPU host agent that keeps reporting while the hardware fails."""

__version__ = "0.1.0"

DEFAULT_PORT = 17400
"""TCP port of the HTTP server. It is not in Prometheus's list of exporter ports, IANA's registry or Linux's ephemeral
range.
"""
JOB = "gpumon"
"""Name of the scrape job in Prometheus."""
