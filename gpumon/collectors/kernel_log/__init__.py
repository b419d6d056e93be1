"""The kernel's messages, and what the NVIDIA drivers say in them: Xids, SXids, GPUs that fell off the bus."""
