"""`python -m gpumon` is `gpumon`."""

import sys

from gpumon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
