"""State of the agent: messages come in, `reduce` applies them, and one frozen Report goes out.

Pure, except `monitor` and `event_grouping`.
"""
