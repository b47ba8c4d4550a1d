"""The verbs of the command line, one a file: settings to parts to call. Nothing but `cli` and the library's front, which imports `train`, imports a verb."""
