"""What was seen: frozen dataclasses that are also the metric tables. Imports nothing of ours."""
