"""What the readings and events mean for the node's health."""
