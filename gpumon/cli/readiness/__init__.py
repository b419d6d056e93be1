"""The checks of `gpumon doctor`, and the facts about this host on which they are based."""
