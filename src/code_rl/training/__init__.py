"""The algorithm and a run. `code_rl.loop` is the page that calls these parts.

`algorithm/` has one idea a file; `config/` the settings, `recipes/` named ones; `assembly` makes a
`run`, `pipeline` its batches, `trainer` starts it; `runs/` is what a run keeps on disk and how it
resumes; `report/` is its page; `library` has the functions of `import code_rl`.
"""
