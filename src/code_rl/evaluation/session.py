"""`code-rl eval`: benchmarks one after the other, each in a folder with all of its files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import chz

from code_rl.data.benchmarks import RowSelection, check_selection
from code_rl.evaluation.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_name,
    load_benchmark,
    reworded,
)
from code_rl.evaluation.comparison import COMPARISON, SUMMARY, summary, summary_table
from code_rl.evaluation.endpoint import Endpoint
from code_rl.evaluation.generators import (
    CompletionGenerator,
    Reference,
    connect_weights,
    read_samples_file,
)
from code_rl.evaluation.manifest import (
    MANIFEST,
    check_same,
    code_version,
    measure,
    read_manifest,
    write_manifest,
)
from code_rl.evaluation.results import RESULTS, make_results
from code_rl.evaluation.runner import Evaluation, Found, Plan
from code_rl.evaluation.samples import STATE, Folder
from code_rl.evaluation.settings import (
    EvalConfig,
    narrowed,
    sample_count,
    sweep_limits,
    wanted_ks,
)
from code_rl.evaluation.view import EvalView, markdown
from code_rl.grading.sandbox import Executor, check_executor, connect_executor
from code_rl.util.errors import ConfigError
from code_rl.util.files import LOCK, make_folder, only_writer, write_atomically

LIVECODEBENCH = "livecodebench"


def check_benchmarks(config: EvalConfig) -> dict[str, str | None]:
    """Return the named benchmarks, each with its `data=` (None: none), in order. Nothing is
    downloaded. Raises ConfigError if one is not available, or if dates or a version are given
    without livecodebench."""
    names = [name.strip() for name in (config.benchmark or "").split(",") if name.strip()]
    if not names:
        raise ConfigError("benchmark= names none")
    data = data_of(config.data, names)
    for name in names:
        check_name(name, data[name])
    if LIVECODEBENCH not in names:
        check_selection(names[0], config.choice)
    return data


def data_of(data: str | None, names: Sequence[str]) -> dict[str, str | None]:
    """Return the `data=` of each benchmark (None: none): PATH for one benchmark (or for several in
    one file), NAME:PATH,… for several.

    Raises ConfigError if it is unclear to which benchmark a file belongs, or if it belongs to none
    of `names`.
    """
    parts = [part.partition(":") for part in (data or "").split(",") if part]
    if data is not None and all(colon and name.strip() in BENCHMARKS for name, colon, _ in parts):
        given: dict[str, str | None] = {name.strip(): path for name, _, path in parts}
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"data={data}: {name} is not among the benchmarks {', '.join(names)}"
                )
        return {name: given.get(name) for name in names}
    one_file = [{"humaneval", "humaneval+"}, {"mbpp", "mbpp+"}]
    if data is not None and len(names) > 1 and not any(set(names) <= each for each in one_file):
        raise ConfigError(
            f"data={data} is for one benchmark, and {len(names)} are named; write "
            "data=NAME:PATH,NAME:PATH"
        )
    return dict.fromkeys(names, data)


async def evaluate_benchmarks(
    config: EvalConfig,
    data: Mapping[str, str | None],
    out: Path,
) -> int:
    """Evaluate all benchmarks under each token limit, in folders of `out` that are continued if
    they hold the same evaluation. Return the exit code: 0, or 1 if a sample has no verdict. Several
    results are followed by a table with their average. `dry_run` writes nothing.

    Raises ConfigError if another process writes into `out`, or if it holds another evaluation.
    """
    lock: AbstractContextManager[object] = contextlib.nullcontext()
    if not config.dry_run:
        lock = only_writer(make_folder(out) / LOCK, f"out={out}")
    with lock:
        limits = sweep_limits(config)
        folders = {limit: out / str(limit) if config.sweep else out for limit in limits}
        codes = [
            await _evaluate_at_limit(
                chz.replace(config, max_tokens=limit, sweep=None), data, folder
            )
            for limit, folder in folders.items()
        ]
        if not config.dry_run and len(limits) * len(data) > 1:
            rows = summary({str(limit): folder for limit, folder in folders.items()})
            write_atomically(out / SUMMARY, json.dumps(rows, indent=2) + "\n")
            EvalView().say(summary_table(rows, "max_tokens"))
    return max(codes)


async def _evaluate_at_limit(config: EvalConfig, data: Mapping[str, str | None], out: Path) -> int:
    """Evaluate every benchmark of `data` (name to file), in order, under one token limit. Return
    the exit code: 0, or 1 if a sample has no verdict."""
    view = EvalView()
    async with contextlib.AsyncExitStack() as stack:
        executor = connect_executor(**config.connection)
        stack.push_async_callback(executor.aclose)
        await check_executor(executor, config.language)
        generator = None
        if not (config.dry_run or config.answered_by == "samples"):  # each has its own there
            generator = await connect_generator(config, out, executor, stack)
        complete = True
        for name, file in data.items():
            choice = config.choice if name == LIVECODEBENCH else RowSelection(config.limit)
            benchmark = await load_benchmark(name, file, choice, executor, view.say)
            worded = reworded(benchmark.prompt, config.prompt, config.system_prompt)
            benchmark = dataclasses.replace(benchmark, prompt=worded, language=config.language)
            folder = out if len(data) == 1 else out / benchmark.name
            complete &= await _evaluate(config, benchmark, generator, executor, folder, view)
    return 0 if complete else 1


async def connect_generator(
    config: EvalConfig, out: Path, executor: Executor, stack: contextlib.AsyncExitStack
) -> CompletionGenerator:
    """Return the generator for every benchmark; `stack` closes it. Raises ConfigError,
    CheckpointError or BackendError if it cannot be used. Samples of a file have a generator for
    each benchmark, made elsewhere."""
    if config.answered_by == "weights":
        return await connect_weights(config, out, executor, stack)
    if config.answered_by == "reference":
        return Reference()
    endpoint = Endpoint(config)
    stack.push_async_callback(endpoint.aclose)
    await endpoint.check()
    return endpoint


async def _evaluate(
    config: EvalConfig,
    benchmark: Benchmark,
    generator: CompletionGenerator | None,
    executor: Executor,
    out: Path,
    view: EvalView,
) -> bool:
    """Evaluate one benchmark in the folder `out`. Return True if every sample has a verdict.
    `generator` None: a dry run, or stored samples. Raises ConfigError for another's folder."""
    n, greedy = sample_count(config), bool(config.greedy)
    if config.temperature == 0 and config.answered_by in ("endpoint", "weights"):
        n, greedy = 0, True
    if config.samples is not None:
        generator, in_file, greedy, left_out = read_samples_file(
            config.samples, benchmark.entries, benchmark.others
        )
        if left_out:
            view.say(
                f"{left_out} samples of problems that dates, limit or broken rows leave out are "
                "not counted"
            )
        n = in_file if config.n is None else config.n
    ks = wanted_ks(config, n)
    one = ", and one greedily" if greedy else ""
    what = f"{benchmark.name}: {len(benchmark.entries)} problems, {n} samples each{one}"
    if config.dry_run or generator is None:
        view.say(f"{what}; nothing was asked, nothing judged")
        return True
    for entry in benchmark.entries if config.language is not None else ():
        benchmark.question(entry)  # raises where its tests are Python's
    make_folder(out)
    earlier = read_manifest(out)
    speed = earlier.get("speed") or await measure(executor)
    official = benchmark.name == LIVECODEBENCH
    limits = config.reward_timeout, speed["cpu_limit_factor"]
    plan = Plan(n, greedy, config.seed, *limits, official)
    counts = {"problems": len(benchmark.entries), "skipped": benchmark.facts["skipped"]}
    manifest = {
        "identity": identity(config, benchmark, generator, plan),
        "code": code_version(),
        "executor": executor.description,
        "speed": speed,
        "counts": counts,
        "started": earlier.get("started")
        or datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    check_same(earlier, manifest, out)
    write_manifest(out, manifest)
    evaluation = Evaluation(
        benchmark.entries, benchmark.question, generator, plan, executor, Folder(out)
    )
    view.say(f"{what}; {generator.description}; {executor.description}")
    with view.judging(evaluation.total) as evaluation.on_verdict:
        found = await evaluation.run()
    if found.resumed:
        view.say(f"{found.resumed} of {evaluation.total} samples were here from before")
    manifest["counts"] = {**counts, **_counts(found, evaluation.total)}
    results = make_results(benchmark, found, plan, ks, generator.description, config)
    write_manifest(out, manifest)
    return _shown(results, out, view)


def _shown(results: Mapping[str, Any], out: Path, view: EvalView) -> bool:
    """Write `results.json` and `results.md`, and show the results. Return True if every sample has
    a verdict."""
    write_atomically(out / RESULTS, json.dumps(results, indent=2) + "\n")
    write_atomically(out / "results.md", markdown(results) + "\n")
    view.results(results)
    view.say(f"results: {out}")
    undecided = {"sandbox_error", "checker_error"} & results["verdicts"].keys()
    return not (results["missing"] or undecided)


def _counts(found: Found, wanted: int) -> dict[str, int]:
    """Return the counts of all samples: `wanted` = judged + without a verdict + missing; those from
    an earlier process are among them."""
    judged = sum(outcome.judged for outcome in found.outcomes.values())
    return {
        "samples_wanted": wanted,
        "samples_judged": judged,
        "samples_without_verdict": len(found.outcomes) - judged,
        "samples_missing": len(found.missing),
        "samples_from_before": found.resumed,
    }


def identity(
    config: EvalConfig, benchmark: Benchmark, generator: CompletionGenerator, plan: Plan
) -> dict[str, Any]:
    """Return the identity of this evaluation; its folder can be continued, and two evaluations
    compared, by these names. A new one makes every earlier folder another evaluation."""
    sampled = config.answered_by in ("endpoint", "weights")
    return {
        "benchmark": benchmark.name,
        **{name: value for name, value in benchmark.facts.items() if name != "skipped"},
        "prompt": benchmark.prompt.version,
        "asked": dict(generator.facts),
        **({} if config.language is None else {"language": config.language}),
        "rule": "lcb-official" if plan.official else "each problem's own",
        "settings": {
            "n": plan.samples,
            "greedy": plan.greedy,
            "limit": config.limit,
            "temperature": config.temperature if sampled else None,
            **narrowed(config),
            "max_tokens": config.max_tokens if sampled else None,
            "seed": config.seed,
            "reward_timeout": config.reward_timeout,
        },
    }


def holds_evaluations(folder: Path, below: int = 2) -> bool:
    """Return True for the folder of an evaluation, and for a folder with only such folders (by
    limit, by benchmark; at most `below` levels) and their shared files; an empty folder counts.
    Raises ConfigError for a manifest that cannot be read."""
    if (folder / MANIFEST).is_file():
        return "identity" in read_manifest(folder)
    beside = (SUMMARY, COMPARISON, STATE, LOCK)
    try:
        return all(
            each.name in beside
            or (below > 0 and each.is_dir() and holds_evaluations(each, below - 1))
            for each in folder.iterdir()
        )
    except OSError:
        return False
