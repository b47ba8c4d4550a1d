"""What runs on the far side: the zygote, its workers, the supervisor of one submission. Standard
library only.

The host's half imports what both sides speak: `wire`, `files`, the signs of `zygote` and, of
`confinement`, `confine`; the audit of a function `kernel`.
"""
