"""The command line. Each subcommand has a module, in which `add` adds its arguments and `run` runs it."""
