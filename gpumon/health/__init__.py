"""Health of the node: checks turn readings and error events into verdicts with a reason and an action."""
