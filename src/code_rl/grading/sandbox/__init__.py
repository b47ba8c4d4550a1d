"""Running hostile programs: `executor` is the contract, `connect` makes the executor that a setting
names.

`embedded` is ours (namespaces, seccomp, landlock), `fusion` speaks to Sandbox Fusion servers,
`cluster` puts one of ours on each node of Ray, `serving` is our own server. Others import
`executor` and `connect`. The other servers here (`backends.server`, `reports.live`) take
`serving.admission`, verbs its other parts and `embedded.pool`, `audit` parts of `fusion` and
`embedded.guest.kernel`.
"""
