"""The command line, one file for each subcommand: `add(parser)` adds arguments, `run(args)` returns the exit code."""
