"""Where the model lives: `connect` gives one client shape, Tinker's, whatever is behind it.

`embedded` is ours in this process, `remote` a service (checked by `preflight`), `vllm` a sampler beside either; `server` is `code-rl serve`. What each can do is in `code_rl.engine.places`.
Others import `connect`; what needs the engine itself, `embedded`; verbs also `adapters`, `names` (of models), `preflight` and `server`.
"""
