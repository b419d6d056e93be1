"""Reads the kernel log and the errors in it, such as Xids, SXids, GPUs that fell off the bus, PCIe and NIC errors."""
