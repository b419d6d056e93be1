"""Explains why a distributed PyTorch job hangs. Only the command `gpumon explain` imports it, never the daemon."""
