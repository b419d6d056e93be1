"""Reads the driver. Only the sampler child imports this: a call in here may never return."""
