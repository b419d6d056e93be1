"""A folder that `gpumon simulate` adds to PYTHONPATH: its `sitecustomize` runs first in each Python started."""
