"""The command line, one file for each subcommand: `add(parser)` adds arguments, `run(chosen)` returns the exit code."""
