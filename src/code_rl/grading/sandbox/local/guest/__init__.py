"""The guest side: the zygote, its workers, the supervisor of one submission. Standard library only.

The host's half imports the shared protocol: `wire`, `files`, the signs of `zygote` and, of
`confinement`, `confine`; the audit of a function imports `kernel`.
"""
