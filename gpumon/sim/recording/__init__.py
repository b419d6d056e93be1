"""Recordings of NVML's answers on a host: built from the call log of a recording sampler, masked and summarized."""
