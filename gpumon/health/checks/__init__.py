"""The health checks, one module a subject: pure check functions, and below them their rows of the table."""
