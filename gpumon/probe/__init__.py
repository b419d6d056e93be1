"""Probes: pure planning and conclusions (core), scheduling and rank processes (runner), and the ranks (worker)."""
