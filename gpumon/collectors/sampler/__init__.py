"""The sampler child: the only process that loads a driver. It reads its orders once and writes frames."""
