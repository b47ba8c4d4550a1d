"""The command line: one file a verb. `main` lists the verbs and runs one."""
