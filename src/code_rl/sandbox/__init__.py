"""Running hostile programs: `executor` is the contract, `connect` makes the executor that a setting names.

`embedded` is ours (namespaces, seccomp, landlock), `fusion` speaks to Sandbox Fusion servers, `cluster` puts one of ours on each node of Ray,
`server` and `serving` are our own server. Others import `executor` and `connect`; only the verb imports `server`.
"""
