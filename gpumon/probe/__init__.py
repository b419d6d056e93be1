"""Probes: what is planned and concluded (core), what starts ranks (runner), and the ranks themselves (worker)."""
