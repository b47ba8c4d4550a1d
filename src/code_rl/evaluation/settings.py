"""The settings of `code-rl eval`, and those whose defaults come from a checkpoint's run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import chz

from code_rl.data.benchmarks import RowSelection
from code_rl.engine import BUILT_IN, BackendKind, resolve_backend
from code_rl.engine.checkpoints import read_config, run_of
from code_rl.engine.names import with_absolute_path
from code_rl.policy.environments import ENVIRONMENTS, get_environment
from code_rl.policy.prompt_templates import PROMPTS, get_prompt_template
from code_rl.policy.renderers import check_renderer
from code_rl.util.errors import ConfigError
from code_rl.util.options import (
    ABOVE_0,
    ALL_OR_SOME,
    AT_LEAST_0,
    AT_LEAST_1,
    SamplingOptions,
    SandboxOptions,
    option,
)
from code_rl.util.settings import make_settings

REFERENCE = "reference"
FROM_RUN = {"eval_samples": "n", "eval_limit": "limit"} | {
    name: name
    for name in (
        "model_name",
        "backend",
        "device",
        "dtype",
        "threads",
        "renderer",
        "max_tokens",
        "temperature",
        "seed",
        "reward_timeout",
        "language",
        "environment",
        "max_turns",
        "top_p",
        "top_k",
        "prompt",
        "system_prompt",
    )
}
"""A run's settings and their names here. With checkpoint= they are the defaults, so that results
agree with the run's own."""


@chz.chz
class EvalConfig(SamplingOptions, SandboxOptions):
    """Evaluate a model on benchmarks, or compare two evaluations.

    The model: model_name= (with backend=), checkpoint=RUN, endpoint=URL with model_name=,
    samples=FILE, or model_name=reference. The problems: benchmark=.
    """

    benchmark: str | None = option(
        None,
        "One or several, comma-separated: livecodebench, humaneval[+], mbpp[+], codeforces, "
        "builtin, a file, a prepared FOLDER[:SPLIT], or package.module:object.",
    )
    data: str | None = option(
        None,
        "Local data: a file (livecodebench: the folder of shards), or NAME:PATH,NAME:PATH. None: "
        "downloaded once, at a pinned revision.",
    )
    version: str | None = option(
        None, "LiveCodeBench: release_v5 (the first five shards), v6 (the sixth alone), v4_v6."
    )
    start_date: str | None = option(
        None, "LiveCodeBench: first contest date, YYYY-MM-DD, inclusive."
    )
    end_date: str | None = option(None, "LiveCodeBench: last contest date, YYYY-MM-DD, inclusive.")
    limit: int = option(
        -1,
        "Problems per split (a fixed subsample); -1: all.",
        ALL_OR_SOME,
    )
    checkpoint: str | None = option(
        None,
        "RUN (its last checkpoint) or RUN/CHECKPOINT. The run's settings are the defaults.",
    )
    endpoint: str | None = option(
        None, "Address of an OpenAI Chat Completions API, http://HOST:PORT/v1."
    )
    samples: str | None = option(
        None,
        "Samples from elsewhere: our samples.jsonl, evalplus's or LiveCodeBench's format.",
    )
    environment: str = option(
        "single",
        f"{', '.join(ENVIRONMENTS)} (the last two have several turns: docs/how-it-works.md), or "
        "package.module:Class.",
    )
    max_turns: int | None = option(
        None, "With environment=repair or tools: maximum answers per problem (None: 3 or 4)."
    )
    n: int | None = option(
        None,
        "Samples per problem (None: 8; a samples file's number; 1 for reference). 0: greedy only.",
        AT_LEAST_0,
    )
    greedy: bool | None = option(
        None,
        "Also one greedy completion per problem (None: with checkpoint= only).",
    )
    k: str | None = option(
        None, "Values of k for pass@k, comma-separated, at most n (None: 1 and n)."
    )
    prompt: str | None = option(
        None,
        f"Prompt template: {', '.join(PROMPTS)}, or package.module:function. None: each "
        "benchmark's own.",
    )
    sweep: str | None = option(
        None,
        "Token limits, comma-separated, in place of max_tokens; each has a folder of its own.",
    )
    asking: int = option(32, "Requests in flight at once.", AT_LEAST_1)
    request_timeout: float = option(
        1800.0,
        "Seconds per request to an endpoint; beyond it, its sample is missing.",
        ABOVE_0,
    )
    extra_body: str | None = option(
        None, 'Further fields of requests to an endpoint, as JSON: {"min_p": 0.05}.'
    )
    api_key_env: str | None = option(
        None, "Environment variable that holds the endpoint's key (None: no key is sent)."
    )
    standings: str | None = option(
        None, "Codeforces: snapshot of official standings, for the rating."
    )
    ratings: str | None = option(
        None, "Codeforces: ratings of all users, {rating: users}, for the percentile."
    )
    compare: str | None = option(
        None, "Folders of two evaluations, A,B: prints the paired difference B minus A."
    )
    out: str | None = option(
        None,
        "Folder of the results; the same folder resumes. None: ~/code-rl-logs/eval-<date-time>.",
    )
    dry_run: bool = option(False, "Check settings and inputs, print the plan, and stop.")

    @property
    def answered_by(self) -> Literal["reference", "endpoint", "samples", "weights"]:
        """The kind of generator for these settings; `samples=` and `endpoint=` win over a model."""
        if self.samples is not None:
            return "samples"
        if self.endpoint is not None:
            return "endpoint"
        return "reference" if self.model_name == REFERENCE else "weights"

    @property
    def choice(self) -> RowSelection:
        """The rows that `limit`, `version`, `start_date` and `end_date` select."""
        return RowSelection(self.limit, self.version, self.start_date, self.end_date)


def make_eval_config(given: Mapping[str, Any]) -> EvalConfig:
    """Return the settings from the command line, over those of the checkpoint's run (then `greedy`
    is on by default), with back end and model resolved. Raises ConfigError for settings that are
    unknown, missing, conflict or have no effect, and for a checkpoint without a run."""
    from_run: dict[str, Any] = {}
    if given.get("checkpoint"):
        run = run_of(str(given["checkpoint"]))[0]
        kept = read_config(run)
        from_run = {
            mine: kept[theirs] for theirs, mine in FROM_RUN.items() if kept.get(theirs) is not None
        }
        from_run["greedy"] = True
        if "environment" in given:
            from_run.pop("max_turns", None)
    config = make_settings(EvalConfig, from_run, given)
    _check(config, given)
    weights = config.compare is None and config.answered_by == "weights"
    return _resolved(config) if weights else config


def _resolved(config: EvalConfig) -> EvalConfig:
    """Return the settings with the back end and the model that stand for `auto` and None. Raises
    ConfigError for a back end that this version does not have."""
    backend, name = resolve_backend(config.backend), config.model_name or BUILT_IN
    if backend == BackendKind.EMBEDDED:
        name = with_absolute_path(name)
    return chz.replace(config, backend=backend, model_name=name)


OF_WEIGHTS = ("backend", "device", "dtype", "threads", "renderer", "environment", "max_turns")
OF_SAMPLING = (
    *("temperature", "top_p", "top_k", "prompt", "system_prompt"),
    *("max_tokens", "sweep", "seed", "asking"),
)
APPLIES: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("extra_body", "api_key_env", "request_timeout"): (("endpoint",), "endpoint="),
    OF_WEIGHTS: (("weights",), "model_name= or checkpoint= on a back end"),
    OF_SAMPLING: (("endpoint", "weights"), "a model that samples"),
    ("language",): (("endpoint", "weights", "samples"), "programs that others write"),
    ("greedy",): (("endpoint", "weights"), "a model that samples"),
}
"""The kinds of generator for which settings have an effect, and those in words."""


def _check(config: EvalConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the setting, for every `given` setting without an effect, and for
    values that contradict each other."""
    if config.compare is not None:
        if others := [name for name in given if name not in ("compare", "out")]:
            why = "has no effect with compare=, which reads finished evaluations; leave it out"
            raise ConfigError(f"{others[0]}= {why}")
        return
    if config.benchmark is None:
        raise ConfigError("benchmark= is missing; --help lists them")
    _check_answerer(config, given)
    for names, (kinds, whose) in APPLIES.items():
        for name in names:
            if name in given and config.answered_by not in kinds:
                raise ConfigError(f"{name}= has no effect here: it belongs to {whose}")
    if config.sweep is not None and "max_tokens" in given:
        raise ConfigError(
            f"sweep={config.sweep} takes the place of max_tokens; leave one of them out"
        )
    sweep_limits(config)
    if config.answered_by == "weights":
        # Else the system message, or each benchmark's prompt, comes first.
        own = config.environment not in ENVIRONMENTS
        words = (config.prompt, config.system_prompt) if own else (None, None)
        get_environment(config.environment, config.max_turns, *words)
        check_renderer(config.renderer)
    get_prompt_template(config.prompt)
    if config.answered_by == "reference" and config.n not in (None, 1):
        raise ConfigError("model_name=reference has one solution per problem; leave out n=")
    sampled = config.answered_by in ("endpoint", "weights")
    if sampled and config.temperature == 0 and (config.n or 1) > 1:
        raise ConfigError(f"temperature=0 draws the same completion {config.n} times; give n=1")
    if config.n == 0 and not config.greedy:
        raise ConfigError("n=0 samples nothing; give greedy=true or n of at least 1")
    benchmarks = [part.strip() for part in config.benchmark.split(",")]
    for name in ("standings", "ratings"):
        if getattr(config, name) is not None and "codeforces" not in benchmarks:
            raise ConfigError(f"{name}= belongs to benchmark=codeforces")
    if config.ratings is not None and config.standings is None:
        raise ConfigError("ratings= gives percentiles of a rating, which needs standings=")


def _check_answerer(config: EvalConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError unless exactly one model, checkpoint, endpoint or file of samples is named;
    an endpoint needs `model_name` too."""
    ways = [
        name for name in ("checkpoint", "endpoint", "samples") if getattr(config, name) is not None
    ]
    if len(ways) > 1:
        raise ConfigError(f"{ways[0]}= and {ways[1]}= are two different ones to evaluate; give one")
    if not ways and config.model_name is None:
        raise ConfigError(
            "who is evaluated? give model_name=, checkpoint=RUN, endpoint=URL with model_name=, or "
            "samples=FILE"
        )
    if config.endpoint is not None and config.model_name in (None, REFERENCE):
        raise ConfigError("endpoint= needs model_name=, the name under which the server knows it")
    if ways in (["checkpoint"], ["samples"]) and "model_name" in given:
        raise ConfigError(f"model_name= has no effect with {ways[0]}=; leave it out")


def sample_count(config: EvalConfig) -> int:
    """Return the samples per problem of a model: `n`, or by default 8, and 1 for the reference or
    at temperature 0."""
    if config.n is not None:
        return config.n
    return 1 if config.answered_by == "reference" or config.temperature == 0 else 8


def wanted_ks(config: EvalConfig, n: int) -> tuple[int, ...]:
    """Return the k for which pass@k is reported, ascending, always with 1; by default 1 and `n`,
    the samples per problem. Raises ConfigError for a k above n."""
    if config.k is None:
        return tuple(sorted({1, max(n, 1)}))
    ks = _numbers("k", config.k)
    if max(ks) > max(n, 1):
        raise ConfigError(f"k={config.k}: each k must be between 1 and n={n}")
    return tuple(sorted({1, *ks}))


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the different numbers of a comma-separated list, in order. Raises ConfigError, naming
    the setting `name`, unless all are whole and at least 1."""
    try:
        numbers = tuple(dict.fromkeys(map(int, text.split(","))))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise ConfigError(f"{name}={text!r} must be whole numbers of at least 1, comma-separated")
    return numbers


def narrowed(config: EvalConfig) -> dict[str, float]:
    """Return `top_p` and `top_k` if they narrow the sampling; both are off by default."""
    off = {"top_p": 1.0, "top_k": -1}
    return {
        name: getattr(config, name) for name, value in off.items() if getattr(config, name) != value
    }


def sweep_limits(config: EvalConfig) -> tuple[int, ...]:
    """Return the token limits to evaluate under: those of `sweep`, or `max_tokens` alone. Raises
    ConfigError for a malformed list."""
    if config.sweep is None:
        return (config.max_tokens,)
    return _numbers("sweep", config.sweep)
