"""Probes: measurements of GPUs and links by several processes (ranks), such as the bandwidth of an NCCL all-reduce.

core/ plans and judges runs without I/O, worker/ is the program of a rank. gpumon/runner/ schedules runs.
"""
