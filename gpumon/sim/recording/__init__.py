"""Recordings of what NVML answers on a host: made from what a recording sampler notes, masked, and summed up."""
