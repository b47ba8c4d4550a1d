"""`code-rl prepare`: from raw problems to problems worth training on, by stages that each say what they dropped and why.

A file a stage, those on one idea in a room (`overlap`, `verification`); `pipeline` runs them, `bench` and `ledger` are what they share. The verb imports `pipeline`, `settings`, `report`, `write`, and of the stages `difficulty`, `normalise` and `overlap`, to check and announce them.
"""
