"""Where does the model live? `connect` gives one client shape, Tinker's, for every back end.

`local/` is the engine in this process, `remote` a service (checked by `preflight`), `vllm` a
sampler beside the engine, `serve/` is `code-rl serve`. `losses` are computed here or sent by name;
`checkpoints` are the saved states of a run; `adapters` exports; `places` says what each back end
can do.
"""
