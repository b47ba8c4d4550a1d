"""The command line: one file per verb. `main` lists the verbs and runs one."""
