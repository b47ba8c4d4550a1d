"""Our reward where people train already: one file a framework, over `rows`. Each needs its
framework only where it subclasses something of it. Nothing here imports this room."""
