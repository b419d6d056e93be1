"""HTTP server: API routes (FastAPI), authorisation, and the status page."""
