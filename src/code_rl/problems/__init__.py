"""Problems: records (`problem`), their format (`native`), the built-in family (`builtin`), and any `dataset=` as problems to draw from (`load`, `dataset`, `order`).

`sources` reads rows of public sets, `resolve` runs what only a run can tell, `on_disk` keeps the result for random access, `catalogue` and `fetch` know
public files. Nothing here samples or trains. Others import these, `prompts` (how a problem is worded), `values` (what functions take and give), `syntax`, and `files`.
"""
