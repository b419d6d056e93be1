"""Recordings of a host's NVML answers: recording the calls, building and masking the recording, summarizing it."""
