"""Probes: measurements of GPUs and links by several processes (ranks), such as the bandwidth of an NCCL all-reduce.

core/ plans and judges runs without I/O, runner/ schedules them and starts the ranks, worker/ is the program of a rank.
"""
