"""The modules of the rank program. They import only the standard library and torch, and run on Python 3.9 and later."""
