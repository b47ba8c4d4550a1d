"""The stage that runs programs: `verify` proves references, `diagnosis` explains failures, `trials`
runs and mutates."""
