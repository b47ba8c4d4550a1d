"""The embedded sandbox: warm-fork workers in Linux namespaces. `pool` is the executor, `launcher`
starts the zygote, `link` speaks to a worker; `guest` runs inside and imports nothing of the host's
half."""
