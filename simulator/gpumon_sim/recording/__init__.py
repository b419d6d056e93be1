"""Records the NVML calls on a host, builds and masks a recording from them, and summarizes the recording."""
