"""Conversations through the real sandbox: what is left open, how long an end may take, what streams say of themselves."""

from __future__ import annotations

import asyncio
import os
from io import FileIO

import pytest

from code_rl.sandbox.embedded import conversation, pool
from code_rl.sandbox.embedded.link import Idle
from code_rl.sandbox.embedded.pool import EmbeddedSandbox
from code_rl.sandbox.executor import CallInput, Conversation, Job, Limits, Status
from tests.sandbox.sandbox_boxes import stdin_job

INTERACTOR = "import os, time\ndef interact():\n    "


def interactor(body: str) -> Job:
    return Job(INTERACTOR + body, (CallInput(()),), fn_name="interact", limits=Limits(strict=True), trusted=True)


def held(program: str, body: str) -> Conversation:
    async def go() -> Conversation:
        async with EmbeddedSandbox(1, "full") as box:
            return await box.converse(stdin_job(program, cpu_s=2.0), interactor(body))

    return asyncio.run(go())


def test_the_streams_of_a_conversation_cannot_seek() -> None:
    code = "import sys\nprint(sys.stdin.seekable(), sys.stdout.seekable(), sys.__stdin__ is sys.stdin, sys.stdin.name, flush=True)\nprint(input())"
    ended = held(code, "os.write(1, b'hello\\n'); return os.read(0, 100).decode() + os.read(0, 100).decode()")
    assert ended.program.status is Status.OK
    assert ended.interactor.value == b'"False False True <stdin>\\nhello\\n"'


def test_who_talks_to_one_that_has_left_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    ended = held("for _ in range(200000): print('x' * 50)", "os.close(0); time.sleep(.3); return True")
    assert ended.program.status is Status.OK
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_an_interactor_that_outstays_the_program_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LAST_WORDS_S", 0.2)
    ended = held("print('x')", "\n    while True: time.sleep(1)")
    assert (ended.program.status, ended.interactor.status) == (Status.OK, Status.TIME_LIMIT)
    assert ended.transcript == (("program", b"x\n"),)


def test_conversations_that_are_cancelled_leave_no_descriptor_open() -> None:
    async def go() -> tuple[int, int]:
        async with EmbeddedSandbox(1, "full") as box:
            program, other = stdin_job("input()"), interactor("time.sleep(60)")

            async def cancelled(after: int) -> None:
                task = asyncio.create_task(box.converse(program, other))
                for _ in range(after):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.05 * (after % 3))
                task.cancel()
                await asyncio.wait([task])
                await asyncio.sleep(0.05)

            await box.converse(stdin_job(""), interactor("return True"))
            before = len(os.listdir("/proc/self/fd"))
            for after in range(24):
                await cancelled(after)
            await box.converse(stdin_job(""), interactor("return True"))
            return before, len(os.listdir("/proc/self/fd"))

    before, afterwards = asyncio.run(go())
    assert afterwards <= before


def test_a_program_that_waits_is_said_to_be_idle() -> None:
    async def go() -> list[Idle]:
        heard: list[Idle] = []
        async with EmbeddedSandbox(1, "full") as box:
            usual = conversation.converse

            async def listening(*sides: conversation.Side, idle: object) -> Conversation:
                return await usual(*sides, idle=heard.append)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("code_rl.sandbox.embedded.pool.converse", listening)
                await box.converse(stdin_job("input()"), interactor("time.sleep(2); os.write(1, b'\\n')"))
        return heard

    assert asyncio.run(go())


def test_a_pipe_that_breaks_at_the_end_says_goodbye_once() -> None:
    async def go() -> list[object]:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        (source, talk), (deaf, target) = os.pipe(), os.pipe()
        os.write(talk, b"x")
        os.close(talk)
        os.close(deaf)
        message = pool._message(stdin_job("pass", b""))
        await conversation._relay(FileIO(source, "rb"), FileIO(target, "wb"), lambda _: None, message)
        await asyncio.sleep(0.05)
        return complaints

    assert asyncio.run(go()) == []
