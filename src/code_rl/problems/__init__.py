"""Problems: records (`problem`), their format (`native`), the built-in family (`builtin`), what draws of them (`order`); `sources` reads rows of public sets.

Nothing here runs a program. Others import these, `prompts` (how a problem is worded), `values` (what functions take and give), `syntax`, and `files` (data files, row by row).
"""
