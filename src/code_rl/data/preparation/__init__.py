"""`code-rl prepare`: from raw problems to problems worth training on, by stages that each say what
they dropped and why.

A file a stage, those of `verify` in a room; `pipeline` runs them, `bench` and `ledger` are what
they share. The verb imports `pipeline`, `settings`, `report`, `write`, and of the stages
`difficulty`, `normalise` and `evaluation_sets`, to check and announce them.
"""
