"""Reads the kernel log and the errors in it: Xids, SXids, GPUs that fell off the bus, PCIe and NIC errors."""
