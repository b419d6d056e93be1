"""`python -m gpumon` is `gpumon`."""

import sys

from gpumon.cli import main

if __name__ == "__main__":
    sys.exit(main())
