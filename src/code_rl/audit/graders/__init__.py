"""Graders that can be audited: a file for each kind of target. Imported by `audit.scorecard` and the verb only."""
