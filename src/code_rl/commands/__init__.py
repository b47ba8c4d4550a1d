"""The verbs of the command line, one a file: settings to parts to call."""
