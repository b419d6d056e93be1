"""One rank of a probe. Only the standard library and torch, for Python 3.9 and later: see the worker's __main__."""
