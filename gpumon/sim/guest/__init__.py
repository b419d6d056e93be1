"""A folder that `gpumon simulate` puts into PYTHONPATH: its `sitecustomize` runs first in the Python it starts."""
