"""`python -m gpumon_sim`: the same as the command gpumon-sim."""

import sys

from gpumon_sim.command import main

sys.exit(main())
