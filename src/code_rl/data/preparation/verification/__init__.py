"""The stage that runs programs: `verify` proves references, and `attempts` perturbs and mutates
them."""
