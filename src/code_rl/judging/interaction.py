"""Interactive problems: an interactor written by the problem's author talks to the program.

Its source defines `interact(input, expected, program)`, which returns True when the program did well, False or a string that says why when it did not.
It runs as a trusted submission of its own; the host carries what either writes to the other.
"""

from __future__ import annotations

import dataclasses

from code_rl.judging.checker import OUTPUT_BYTES, UndecidedError, read_decision, unreadable
from code_rl.judging.reasons import Reason, clip, status_reason
from code_rl.judging.submission import program_job
from code_rl.judging.verdict import VerdictKind
from code_rl.problems.problem import INTERACT, Problem, StdinTest
from code_rl.sandbox.executor import CallInput, Conversation, Converses, Execution, Job, Limits

INTERACTOR_CPU_S = 20.0
MAX_SHOWN_TURNS, MAX_SHOWN_CHARS = 12, 200
_CONSEQUENCES = ("EOFError", "BrokenPipeError")
"""What a program ends with when the interactor has left."""

PREAMBLE = '''\
class _Program:
    """The program at the other end: descriptors 0 and 1."""

    def __init__(self):
        self._from, self._to = open(0, "rb", closefd=False), open(1, "wb", 0, closefd=False)

    def readline(self):
        """The next line without its end; "" when the program writes no more."""
        return self._from.readline().decode("utf-8", "replace").rstrip("\\r\\n")

    def read_token(self):
        """The next token between white space; "" when the program writes no more. Raises ValueError for one of more than a megabyte."""
        token = bytearray()
        while byte := self._from.read(1):
            if not byte.isspace():
                token += byte
                if len(token) > 1 << 20:
                    raise ValueError("a token of more than a megabyte")
            elif token:
                break
        return token.decode("utf-8", "replace")

    def write(self, text):
        """Send text at once. What a program that has ended would have read is dropped."""
        data = memoryview(str(text).encode())
        try:
            while data:
                data = data[self._to.write(data) :]
        except BrokenPipeError:
            pass
'''
SETUP = """\
def _with_program(interact):
    return lambda input, expected: interact(input, expected, _Program())


interact = _with_program(interact)
"""


async def converse(
    problem: Problem, test: StdinTest, code: str, executor: Converses, limits: Limits
) -> tuple[Reason | None, Execution]:
    """One conversation: why it failed (None: it went well), and the program's execution. Raises SandboxError."""
    held = await executor.converse(*_jobs(problem, test, code, limits))
    own = status_reason(held.program, test)
    left = own is not None and own.kind is VerdictKind.RUNTIME_ERROR and own.message in _CONSEQUENCES
    try:
        said = read_decision(held.interactor)
    except UndecidedError as error:
        if own is not None and not left:
            return _with_transcript(own, held), held.program
        reason = await _blame(problem, test, executor, limits, error)
        return _with_transcript(reason, held), held.program
    if said is not None and (own is None or left):
        own = Reason(VerdictKind.WRONG_ANSWER, "the interactor says wrong", said)
    return own and _with_transcript(own, held), held.program


async def _blame(
    problem: Problem, test: StdinTest, executor: Converses, limits: Limits, trouble: UndecidedError
) -> Reason:
    """The interactor talks to the first reference solution: does it decide there?"""
    if not problem.solutions:
        return unreadable("interactor", trouble, None)
    held = await executor.converse(*_jobs(problem, test, problem.solutions[0], limits))
    try:
        read_decision(held.interactor)
    except UndecidedError as error:
        return unreadable("interactor", trouble, error)
    return unreadable("interactor", trouble, None)


def _jobs(problem: Problem, test: StdinTest, code: str, limits: Limits) -> tuple[Job, Job]:
    interactor = Job(
        code=problem.interactor or "",
        cases=(CallInput((test.input, test.expected)),),
        fn_name=INTERACT,
        preamble=PREAMBLE,
        setup=SETUP,
        limits=Limits(
            cpu_s=INTERACTOR_CPU_S,
            wall_s=limits.wall_cap_s + INTERACTOR_CPU_S,
            output_bytes=max(OUTPUT_BYTES, limits.output_bytes),
            strict=True,
        ),
        trusted=True,
    )
    return program_job(problem, code, [dataclasses.replace(test, input="")], limits), interactor


def _with_transcript(reason: Reason, held: Conversation) -> Reason:
    joined: list[tuple[str, bytes]] = []
    for speaker, data in held.transcript:
        if joined and joined[-1][0] == speaker:
            joined[-1] = speaker, (joined[-1][1] + data)[: MAX_SHOWN_CHARS + 1]
        elif len(joined) < MAX_SHOWN_TURNS:
            joined.append((speaker, data[: MAX_SHOWN_CHARS + 1]))
    turns = tuple((speaker, data[:MAX_SHOWN_CHARS].decode("utf-8", "replace")) for speaker, data in joined)
    shown = " ".join(f"{speaker} wrote {text!r}." for speaker, text in turns[-2:])
    public = ". ".join(part for part in (reason.public_message, clip(shown)) if part)
    return dataclasses.replace(reason, public_message=public, transcript=turns)
