"""Training beside its controls: `arms` says which runs, `run` makes and evaluates them, `table`
compares them."""
