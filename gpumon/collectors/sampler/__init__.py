"""The sampler child: the only process that loads a driver. Orders in, frames out."""
