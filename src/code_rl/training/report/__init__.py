"""Reports of a run: `page` is self-contained, `live` follows a run, `text` is for the terminal; all
read the records of `run`, summed up by `overview`.

`diagnostics` has the rules and findings.toml their words. `page.render_plain` draws the pages of
audits and of `prepare` too; a run keeps its tokenizer for the page (`token_decoder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.training.report.live import serve
    from code_rl.training.report.overview import side_by_side
    from code_rl.training.report.page import REPORT, write_report
    from code_rl.training.report.run import open_run
    from code_rl.training.report.text import WIDTH, compare_text, render_text
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
