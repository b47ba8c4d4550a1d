"""The verbs of the command line, one a file: settings to parts to call. Nothing but `cli` and the library's front imports a verb."""
