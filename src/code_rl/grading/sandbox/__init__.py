"""How a program is run: `executor` is the contract, `connect` makes the executor of `executor=`.

`local/` is the embedded sandbox (namespaces, seccomp, Landlock), `fusion/` speaks to Sandbox Fusion
servers, `cluster` puts a sandbox on each node of Ray (`node`), `server/` is `code-rl sandbox`.
"""
