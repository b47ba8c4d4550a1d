"""The stage that runs programs: `verify` proves references, and `attempts` runs and mutates
them."""
