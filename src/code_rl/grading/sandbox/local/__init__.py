"""The embedded sandbox: warm-fork workers in Linux namespaces. `pool` is the executor, `launcher`
starts the zygote, and `link` talks to a worker. `guest` runs inside the sandbox and imports nothing
from the host's side."""
