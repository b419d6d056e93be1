"""Runs the command line of gpumon as `python -m gpumon`."""

import sys

from gpumon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
