"""gpumon: the GPU host agent that still tells the truth while the hardware fails."""

__version__ = "0.1.0"
