"""Folder that `gpumon-sim` adds to PYTHONPATH, so that each Python process it starts runs sitecustomize.py."""
