"""Torn writes: every file of a run that was killed, cut at every 64-byte boundary and with bits flipped, then resumed.

    python tests/faults/torn_suite.py [lag=0] [cases=0] [seed=0] [ends=8] [folder=DIR limit_s=240]

A case damages one file, opens the run as a resume does (settings, journal, checkpoint, state, files cut back; no sandbox is started), and asks
for one of two outcomes: an error of ours that names the file, or a start from which nothing can differ from the undisturbed run: its settings
are the original ones, the weights and Adam's moments are those that the undisturbed run saved at that step, each log holds exactly what the
undisturbed run had written by then (or is empty because the resume said that it had to do without), and every completion in flight is an
original one. Large files (weights), and those that a resume does not read, are cut at boundaries drawn at random. `ends` distinct starts are
then run to their end and compared with the undisturbed run. cases=N takes a sample. With folder= and limit_s= it stops after so many seconds
and goes on from there the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.faults.forge import Forge  # noqa: E402
from tests.faults.matrix import Workshop, _unlike  # noqa: E402
from tests.survival.kill_suite import facts_of  # noqa: E402

BOUNDARY = 64
LARGE = 200_000
LARGE_CASES, UNREAD_CASES = 60, 20
STEPS = 4
UNREACHABLE = "http://127.0.0.1:9/run_code"
LOGS = ("metrics.jsonl", "rollouts.jsonl")
UNREAD = ("logs.log", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Damage:
    """One file cut to `size` bytes, or (`bit` not None) with that bit of the byte at `size` flipped."""

    file: str
    size: int
    bit: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.file} cut to {self.size}" if self.bit is None else f"{self.file} bit {self.bit} of byte {self.size}"
        )

    def applied(self, data: bytes) -> bytes:
        if self.bit is None:
            return data[: self.size]
        return data[: self.size] + bytes([data[self.size] ^ 1 << self.bit]) + data[self.size + 1 :]


@dataclass
class Bench:
    """A killed run at its place, its files as they were, and the undisturbed run."""

    shop: Workshop
    run: Path
    files: dict[str, bytes]
    whole: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    starts: dict[str, Damage] = field(default_factory=dict)

    def restore(self, damage: Damage | None) -> None:
        """Put every file back, and damage one."""
        there = {str(path.relative_to(self.run)) for path in self.run.rglob("*") if path.is_file()}
        for name in there - self.files.keys():
            (self.run / name).unlink()
        for name, data in self.files.items():
            path = self.run / name
            wanted = damage.applied(data) if damage is not None and damage.file == name else data
            if (
                len(data) < LARGE
                or not path.is_file()
                or (damage is not None and damage.file == name)
                or path.stat().st_size != len(data)
                or name in self._touched
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wanted)
        self._touched = {damage.file} if damage is not None else set()

    _touched: set[str] = field(default_factory=set)

    def damages(self, seed: int) -> list[Damage]:
        """All cases: cuts at every boundary, and a flipped bit somewhere behind every second one."""
        chooser, found = random.Random(seed), []
        for name, data in sorted(self.files.items()):
            cuts = list(range(0, len(data), BOUNDARY))
            if len(data) > LARGE or name in UNREAD:
                count = UNREAD_CASES if name in UNREAD else LARGE_CASES
                cuts = sorted({0, BOUNDARY, *chooser.sample(cuts, min(count, len(cuts))), cuts[-1]})
            found += [Damage(name, cut) for cut in cuts]
            found += [
                Damage(name, min(cut + chooser.randrange(BOUNDARY), len(data) - 1), chooser.randrange(8))
                for cut in cuts[::2]
            ]
        return found

    def case(self, damage: Damage) -> None:
        """Damage, open, judge."""
        self.restore(damage)
        try:
            opened = asyncio.run(open_run_again(self.run))
        except Exception as error:  # noqa: BLE001 - sorted out here
            self._judge_refusal(damage, error)
            return
        wrong = list(self._differences(opened))
        if wrong:
            self.wrong.append(f"{damage}: {'; '.join(wrong)}; it said {opened.said!r}")
        self.outcomes[f"{_kind(damage.file)}: goes on from step {opened.step}"] += 1
        self.starts.setdefault(self._fingerprint(opened), damage)

    def _judge_refusal(self, damage: Damage, error: Exception) -> None:
        from code_rl.errors import CodeRLError

        text = str(error)
        if not isinstance(error, CodeRLError):
            self.wrong.append(f"{damage}: {''.join(traceback.format_exception(error))}")
        elif Path(damage.file).name not in text and damage.file not in text:
            self.wrong.append(f"{damage}: refused without naming the file: {text}")
        self.outcomes[f"{_kind(damage.file)}: refused by name"] += 1

    def _differences(self, opened: Opened) -> Iterator[str]:
        if opened.config != self._config():
            yield "the settings are others"
        if opened.tensors != self._tensors(opened.step):
            yield f"the state is not that of step {opened.step}"
        for name in LOGS:
            found, wanted = (self.run / name).read_bytes(), self._log(name, opened.step)
            excused = not found and name in opened.said
            if found != wanted and not excused:
                yield f"{name} holds {len(found)} bytes instead of {len(wanted)}"
        originals = {
            line for name, data in self.files.items() if name.startswith("inflight/") for line in data.splitlines(True)
        }
        for path in (self.run / "inflight").rglob("*.jsonl"):
            yield from self._foreign_lines(path, originals)

    @staticmethod
    def _foreign_lines(path: Path, originals: set[bytes]) -> Iterator[str]:
        from code_rl.files import unseal

        for line in path.read_bytes().splitlines(True):
            if unseal(line) is not None and line not in originals:
                yield f"{path.name} holds a completion that nobody drew"

    def _config(self) -> dict[str, Any]:
        kept = json.loads(self.files["config.json"])
        return {
            k: v for k, v in kept.items() if k not in ("resolved", "executor", "log_path", "behavior_if_log_dir_exists")
        }

    def _tensors(self, step: int) -> str:
        if step == 0:
            return ""
        return digest_of(self.whole / "checkpoints" / f"{step:06d}.state.safetensors")

    def _log(self, name: str, step: int) -> bytes:
        lines = (self.whole / name).read_bytes().splitlines(True)
        mine = self.files[name].splitlines(True)
        if (
            name == "metrics.jsonl"
        ):  # times differ between the two runs: the killed run's own lines, where they are the same otherwise
            return b"".join(
                mine[index] for index, line in enumerate(lines) if step > 0 and json.loads(line)["step"] < step
            )
        return b"".join(line for line in lines if json.loads(line)["step"] < step)

    def _fingerprint(self, opened: Opened) -> str:
        digest = hashlib.sha256(str(opened.step).encode())
        for path in sorted([*(self.run / "inflight").rglob("*.jsonl"), *(self.run / name for name in LOGS)]):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    def ends(self, count: int, seed: int) -> None:
        """Run some of the starts to their end: each must be the undisturbed run."""
        chosen = list(self.starts.values())
        random.Random(seed).shuffle(chosen)
        whole = facts_of(self.whole)
        for damage in chosen[:count]:
            self.restore(damage)
            outcome = self.shop.forge.run({"log_path": str(self.run)})
            if outcome.code != 0:
                self.wrong.append(f"{damage}: to the end: {outcome.code} {outcome.err[-400:]}")
                continue
            unlike = _unlike(facts_of(self.run), whole)
            if unlike == ["files differ"] and "goes on without its earlier part" in outcome.out:
                unlike = []
            self.outcomes["run to the end" + (", alike" if not unlike else "")] += 1
            self.wrong += [f"{damage}: to the end: {', '.join(unlike)}"] if unlike else []


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that was opened: where it goes on, with which settings and tensors, and what it said."""

    step: int
    config: dict[str, Any]
    tensors: str
    said: str


async def open_run_again(log_path: Path) -> Opened:
    """All that a resume does before it trains."""
    import chz
    from rich.console import Console as RichConsole

    from code_rl.assembly import assemble
    from code_rl.commands.train import prepare
    from code_rl.console import Console

    text = io.StringIO()
    config, _, resumes = prepare({"log_path": str(log_path), "executor": UNREACHABLE})
    assert resumes
    async with contextlib.AsyncExitStack() as stack:
        console = Console(config.max_steps, RichConsole(file=text, width=100_000))
        run = await assemble(config, log_path, resumes, console, asyncio.Event(), stack)
        left_out = ("executor", "log_path", "behavior_if_log_dir_exists")
        settings = {k: v for k, v in chz.asdict(config).items() if k not in left_out}
        tensors = "" if run.first_step == 0 else _digest(run.backend.trainer._tensors(training=True))  # type: ignore[attr-defined]
        return Opened(run.first_step, json.loads(json.dumps(settings)), tensors, text.getvalue())


@cache
def digest_of(path: Path) -> str:
    """Of a state of the undisturbed run, which does not change."""
    from code_rl.backends.embedded.state import read_state

    return _digest(read_state(path).tensors)


def _digest(tensors: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _kind(name: str) -> str:
    first, _, rest = name.partition("/")
    return (
        first
        if not rest
        else f"{first}/*" + ("/*" if "/" in rest else "")
        if first == "inflight"
        else f"{first}/*{''.join(Path(name).suffixes[-2:])}"
    )


@contextlib.contextmanager
def bench(lag: int, folder: Path) -> Iterator[Bench]:
    """A run of four steps, and another one that was killed in its third; those that are in the folder already."""
    pristine, run, whole = folder / "pristine", folder / "cut" / "run", folder / "whole" / "run"
    with Forge() as forge:
        shop = Workshop(forge, folder, lag, small_disk=False)
        if not pristine.exists():
            longer = {"max_steps": str(STEPS)}
            done = forge.run({**shop.given("whole"), **longer})
            assert done.code == 0, done
            words = {**shop.given("cut"), **longer, "dataset": str(shop.dataset("whole"))}
            killed = forge.run(words, "SIGKILL", "training", step=2)
            assert killed.code == -9, killed
            shutil.copytree(run, pristine)
        files = {str(path.relative_to(pristine)): path.read_bytes() for path in pristine.rglob("*") if path.is_file()}
        yield Bench(shop, run, {name: data for name, data in files.items() if name != "lock"}, whole)


def quicken() -> None:
    """Leave out what costs time and shows nothing here: fsync, reading the tokenizer anew for each case, and a sandbox."""
    from transformers import AutoTokenizer

    from code_rl import assembly

    async def unchecked(_: object) -> None:
        """The executor is one that nobody answers for."""

    os.fsync = lambda fd: None
    assembly.check_executor = unchecked  # type: ignore[attr-defined, assignment]
    AutoTokenizer.from_pretrained = cache(AutoTokenizer.from_pretrained)  # type: ignore[method-assign]


def take_up(made: Bench, kept: Path) -> int:
    """Go on with what an earlier process found; returns the number of cases that are done."""
    if not kept.exists():
        return 0
    earlier = json.loads(kept.read_text())
    made.outcomes.update(earlier["outcomes"])
    made.wrong += earlier["wrong"]
    made.starts.update({name: Damage(**damage) for name, damage in earlier["starts"].items()})
    return int(earlier["done"])


def main(words: list[str]) -> int:
    asked = dict(word.split("=", 1) for word in words)
    seed, began, limit_s = int(asked.get("seed", "0")), time.monotonic(), float(asked.get("limit_s", "inf"))
    logging.getLogger("code_rl").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        where = asked.get("folder") or stack.enter_context(tempfile.TemporaryDirectory(prefix="code-rl-torn-"))
        folder = Path(where).absolute()
        made = stack.enter_context(bench(int(asked.get("lag", "0")), folder))
        quicken()
        cases = made.damages(seed)
        random.Random(seed).shuffle(cases)
        cases = cases[: int(asked.get("cases", "0")) or len(cases)]
        number = take_up(made, folder / "found.json")
        while number < len(cases) and time.monotonic() - began < limit_s:
            made.case(cases[number])
            number += 1
        starts = {name: asdict(damage) for name, damage in made.starts.items()}
        found = {"done": number, "outcomes": made.outcomes, "wrong": made.wrong, "starts": starts}
        (folder / "found.json").write_text(json.dumps(found))
        if number == len(cases):
            made.ends(int(asked.get("ends", "8")), seed)
        sizes = {name: len(data) for name, data in made.files.items()}
        shown = {"cases": number, "of": len(cases), "seconds": round(time.monotonic() - began), "files": sizes}
        shown |= {"outcomes": dict(sorted(made.outcomes.items())), "starts": len(made.starts), "wrong": made.wrong[:20]}
        print(json.dumps({**shown, "wrongs": len(made.wrong)}, indent=1))
    return 1 if made.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
