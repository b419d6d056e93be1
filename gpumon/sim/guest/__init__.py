"""Folder that `gpumon simulate` adds to PYTHONPATH, so that each Python child process runs `sitecustomize.py` in it."""
