"""Stage `normalise`: what is noted of the run that gave a row its expected values is of that row."""

import asyncio
import json
from pathlib import Path

from code_rl.data.preparation.bench import Bench, Survivor
from code_rl.data.preparation.normalise import normalise, open_source, store_key
from code_rl.data.preparation.settings import PrepareConfig

SLOW = "    s = 0\n    for k in range(6_000_000 if n == 3 else 1):\n        s += k & n\n    return s\n"


def row(task_id: str, name: str, body: str, doc: str) -> dict[str, object]:
    prompt = f'def {name}(n: int):\n    """{doc}"""\n'
    calls = {"base_input": [[n] for n in range(6)], "plus_input": []}
    return {"task_id": task_id, "prompt": prompt, "canonical_solution": body, "entry_point": name, "atol": 0, **calls}


def test_a_later_row_of_the_same_id_does_not_give_its_time(tmp_path: Path) -> None:
    rows = [
        row(
            "HumanEval/1",
            "f",
            SLOW,
            "Sum the bitwise and of n with every number of a range that is long where n is three.",
        ),
        row(
            "HumanEval/1",
            "g",
            "    return 3 * n + 1\n",
            "Triple the number and add one, as the game of Collatz has it.",
        ),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))

    async def run() -> list[Survivor]:
        source = open_source(str(path))
        with Bench(PrepareConfig(dataset=str(path), out=str(tmp_path / "out")), source, store_key(source)) as bench:
            try:
                return await normalise(bench, lambda: None)
            finally:
                await bench.aclose()

    (survivor,) = asyncio.run(run())
    assert survivor.entry.derived_s is not None
    assert survivor.entry.derived_s > 0.05
