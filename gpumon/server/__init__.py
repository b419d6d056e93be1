"""The HTTP server: FastAPI routes, authorisation, the page."""
