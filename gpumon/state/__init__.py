"""What the agent has observed: messages in, `reduce`, one frozen Report out. Pure, but for `monitor`."""
