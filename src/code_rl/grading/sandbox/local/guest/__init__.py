"""The guest side: the zygote, its workers, the supervisor of one submission. Standard library only.

The host's side imports the shared protocol: `wire`, `files`, the message names of `zygote`, and
`confinement.confine`. The audit of a function imports `kernel`.

Modules of packages that have a door are imported by their whole name: asked for a name, a door
imports modules of its own, and each page of memory costs time in every fork.
"""
