"""Texts that tell the same problem: copies within the data (`deduplicate`), and with evaluation sets (`decontaminate`; `sharing` weighs what texts share).

`text` is how both read a statement; `filter` reads statements with it too, the verb reads the sets named with `evaluation_sets` before anything else.
"""
