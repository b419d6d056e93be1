"""From the Report to bytes: Prometheus text, JSON documents, a terminal."""
