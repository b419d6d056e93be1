"""The all-reduce probe: what it measures, when it may run, and what its ranks are told. The supervisor starts them."""
