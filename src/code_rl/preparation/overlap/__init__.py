"""Texts that tell the same problem: copies within the data (`deduplicate`), and with evaluation sets (`decontaminate`).

`text` is how both read a statement; `filter` reads statements with it too, `replaying.rejudge` and `verification` take `program_shape`.
"""
