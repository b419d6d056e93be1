"""The command line. Each subcommand has a module, in which `add` adds the arguments and `run` returns the exit code."""
