"""Where the model lives: `connect` gives one client shape, Tinker's, whatever is behind it.

`embedded` is ours in this process, `remote` a service (checked by `preflight`), `vllm` a sampler beside either; `server` is `code-rl serve`.
Others import `connect`, `places` (what a back end can do) and `names` (of models); what needs the engine itself, `embedded`; verbs also `adapters`,
`preflight` and parts of `server`.
"""
