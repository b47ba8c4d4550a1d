"""Reports of a run: `page` is a self-contained file, which a run in progress writes anew, and
`text` is for the terminal. Both read a run with `run` and summarize it with `overview`.

`diagnostics` has the rules of findings, and findings.toml their texts. `page.render_plain` also
renders the pages of audits and of `prepare`. `token_decoder` keeps the run's tokenizer for the
page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.training.report.overview import side_by_side
    from code_rl.training.report.page import REPORT, write_report
    from code_rl.training.report.run import open_run
    from code_rl.training.report.text import WIDTH, compare_text, list_runs, render_text
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
