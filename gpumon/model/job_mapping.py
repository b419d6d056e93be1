"""Format of the job mapping files, which `gpumon mapping` writes and the host child reads.

dcgm-exporter reads the files `<n>`, and `<n>.<gi>` for a MIG instance: a line for each job on the GPU that DCGM numbers
n. Side files, `jobs/<job id>.json`, have the uuids of the GPUs, and more about the job.
"""

from __future__ import annotations

import re

DEVICE = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?")
"""Names of the files that dcgm-exporter reads."""
SIDE_FILES, SUFFIX = "jobs", ".json"
"""Folder of the side files, below that of the mapping files, and their suffix. dcgm-exporter reads no folders."""
