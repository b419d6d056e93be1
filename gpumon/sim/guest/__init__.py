"""Folder that `gpumon simulate` adds to PYTHONPATH, so that each Python process it starts runs sitecustomize.py."""
