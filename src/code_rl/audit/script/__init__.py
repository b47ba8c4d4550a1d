"""A student's training script: `calls` calls its four functions where it is confined, `student` asks it, `functions` judges, `mistakes` names, `learning` trains.

The verb imports what stands here, and `student`.
"""

from __future__ import annotations

from collections.abc import Callable

from code_rl.audit.checklist import Checklist, found
from code_rl.audit.script.functions import Reading, check_functions
from code_rl.audit.script.learning import PART, RISES, check_learning
from code_rl.audit.script.student import SilentError, Student


async def audit_script(student: Student, reading: Reading, steps: int, say: Callable[[str], None]) -> Checklist:
    """The four functions, then, where none of them failed, so many steps of learning (0: none)."""
    card = Checklist("script", str(student.file), say)
    async with student:
        try:
            await student.load()
        except SilentError as silent:
            card.add([found("file", "can be imported", silent.mistake, words=silent.words)])
            return card
        async for checks in check_functions(student, reading):
            card.add(checks)
        if steps and card.clean:
            shifted = reading == "shifted" or "ob_len_shifted" in card.mistakes()
            card.add(await check_learning(student, steps, int(shifted)))
        elif steps:
            card.add([found(PART, RISES, "not_tried", status="missing")])
    return card
