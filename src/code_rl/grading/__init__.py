"""Is this program right? Problems, the judge, and the sandbox that runs programs.

`problem` holds the records, `native` their file format, `extract` finds the program in an answer,
`judge` runs it and gives a `verdict`. `sandbox/` runs
programs: `local`, on Sandbox Fusion servers (`fusion`), on Ray (`cluster`), or for others
(`server`). `audit/` checks other graders.
"""
