"""The health checks, one module per subject: pure check functions, then rows of the table of checks that use them."""
