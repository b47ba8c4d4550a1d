"""`code-rl prepare`: from raw problems to problems worth training on, by stages that each say what they dropped and why.

A file a stage, those on one idea in a room (`overlap`, `verification`); `pipeline` runs them, `bench` and `ledger` are what they share. `replaying.rejudge` imports `ledger` (decisions that survive a cut),
`bench.make_entry` and what finds copies and disagreements in the two rooms; the verb `pipeline`, `settings`, `report`, `write`, and of the stages `difficulty`, `normalise` and `overlap`, to check and announce them.
"""
