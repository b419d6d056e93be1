"""gpumon: a GPU host agent that keeps reporting while the hardware fails."""

__version__ = "0.1.0"

DEFAULT_PORT = 17400
"""TCP port of the HTTP server: outside Prometheus's port list, IANA's registry and the ephemeral ports."""
