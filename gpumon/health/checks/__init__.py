"""The checks, one module a subject: small pure functions, and their rows below them."""
