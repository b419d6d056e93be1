"""The sampler child: the only process that loads a driver. SamplerOrders in, frames out."""
