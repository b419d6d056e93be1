"""Measures `gpumon explain` with real gloo jobs: how often it names the right rank, none, or an innocent."""
