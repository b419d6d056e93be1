"""Readings: frozen dataclasses that are also the metric tables. Imports no other room."""
