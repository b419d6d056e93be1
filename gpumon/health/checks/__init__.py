"""The checks, one module a subject: small pure functions, with their rows below them."""
