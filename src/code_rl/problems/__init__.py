"""Problems: records (`problem`), their format (`native`), the built-in family, and any `dataset=` as problems to draw from (`load`).

`sources` reads rows of public sets, `resolve` runs what only a run can tell, `on_disk` keeps the result for random access. Nothing here samples or trains.
"""
