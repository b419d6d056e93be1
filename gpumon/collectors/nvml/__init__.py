"""Reads the driver. Child only: a call in here may never return."""
