"""What one rank of a probe does. Standard library and torch alone, Python 3.9 and later: see the worker's __main__."""
