"""Folder that `gpumon simulate` adds to PYTHONPATH, so that its `sitecustomize` runs first in each Python it starts."""
