"""The algorithm, one idea a file: functions of records, without files, processes or a loop of their
own.

`datums` and `kl` make examples of what `advantages` and `shaping` say of rewards; `losses`,
`learning_rate`, `lengths` (token limits by step) and `metrics` are what their names say. Others may
import each. Three functions submit requests to a given trainer: `datums.forward_backward`,
`datums.submit_step` and `datums.train_step`. Of the tree the room uses `errors` and `registry`
(parts that a user names); records (`trajectory`, `objective`, `pipeline.TrainedBatch`) it knows as
types.
"""
