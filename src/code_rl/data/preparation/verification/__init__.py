"""The stage that runs programs: `verify` proves references, `trials` runs and mutates."""
