"""The embedded sandbox: warm-fork workers in Linux namespaces. `pool` is its front; `guest` is what runs inside, and imports nothing of the host's half."""
