"""The embedded sandbox: warm-fork workers in Linux namespaces. `pool` is the executor that others
import, `launcher` starts the zygote, `link` speaks to a worker; `guest` is what runs inside, and
imports nothing of the host's half."""
