"""The links child: reads from the kernel's own files what the links between nodes do. Any of them may not answer."""
