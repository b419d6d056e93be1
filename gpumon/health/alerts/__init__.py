"""Rules: a table of small expressions, evaluated here over a bounded history and rendered to PromQL."""
