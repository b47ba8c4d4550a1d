"""Reports of a run: `page` is self-contained, `live` follows a run, `text` is for the terminal; all
read what `run` gathers and `overview` sums up.

`diagnostics` says what looks wrong and what to do, in the words of findings.toml. Verbs and the end
of a run import this room; `page.render_plain` draws the pages of audits and of `prepare` too; a run
keeps its tokenizer for the page by `pieces`.
"""
