"""The algorithm, one idea a file: functions of records, without files, processes or a loop of their own.

`datums` and `kl` make examples of what `advantages` and `shaping` say of rewards; `losses`, `learning_rate`, `lengths` (token limits by step) and `metrics` are what
their names say. Others may import each. Two functions submit requests, to the trainer that they are given: `datums.forward_backward` and `datums.train_step`. Of the tree the room
uses `errors` and `registry` (parts that a user names); records (`trajectory`, `objective`, `pipeline.TrainedBatch`) it knows as types.
"""
