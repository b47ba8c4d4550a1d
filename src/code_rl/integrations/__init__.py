"""Our reward in existing training frameworks: one file per framework, based on `rows`. A file
imports its framework only to subclass its classes. Nothing else here imports this package."""
