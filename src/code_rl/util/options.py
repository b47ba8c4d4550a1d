"""Groups of settings that several verbs share, the fields that they are made of, and checks of
their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import chz

from code_rl.util.errors import ConfigError

Check = Callable[[Any, str], None]


def option(default: Any, doc: str, check: Check | None = None) -> Any:
    """Return a field for the settings of a verb other than `train`. `doc` is shown by `--help` and
    in docs/settings.md; `check` runs when settings are made."""
    return chz.field(default=default, doc=doc, validator=check)


def check_that(holds: Callable[[Any], bool], wanted: str) -> Check:
    """Return a check that a value, unless it is None, satisfies a condition; `wanted` describes the
    condition after "must be". The check raises ConfigError that names the setting."""

    def check(settings: Any, name: str) -> None:
        """Raise ConfigError if the setting `name` is not None and does not satisfy the
        condition."""
        value = getattr(settings, name)
        if value is not None and not holds(value):
            # chz prefixes the name of an unprocessed value with X_.
            raise ConfigError(f"{name.removeprefix('X_')}={value} must be {wanted}")

    return check


DTYPES = ("auto", "float32", "bfloat16")
# With this bound, sums and products of rewards and hyperparameters stay well within 32-bit floats.
LARGEST = 1e9
AT_LEAST_0 = check_that(lambda count: count >= 0, "0 or above")
AT_LEAST_1 = check_that(lambda count: count >= 1, "at least 1")
FROM_0 = check_that(lambda value: 0 <= value <= LARGEST, "a number from 0 to 1e9")
PORT = check_that(lambda port: 0 <= port < 2**16, "a TCP port, 0 to 65535")
ABOVE_0 = check_that(lambda value: 0 < value <= LARGEST, "a number above 0, at most 1e9")
HOST = check_that(bool, "an address of this machine, such as 127.0.0.1")
SHARE = check_that(lambda share: 0 < share <= 1, "above 0 and at most 1")
SEED = check_that(lambda seed: 0 <= seed < 2**31, "in [0, 2**31)")
ALL_OR_SOME = check_that(lambda count: count == -1 or count >= 1, "-1 (all) or at least 1")


@chz.chz
class OutageOptions:
    """How long a verb waits for servers."""

    outage_timeout: float = option(
        600.0,
        "Seconds that the sandbox or a model's server may be away before the command stops, "
        "resumable.",
        ABOVE_0,
    )


@chz.chz
class ExecutorOptions(OutageOptions):
    """Where a verb runs programs, and how many at once."""

    executor: str = option(
        "auto",
        "Where programs run: embedded, ray (docs/cluster.md), or Sandbox Fusion URLs, "
        "comma-separated. auto: SANDBOX_URL if set, else embedded.",
    )
    isolation: Literal["auto", "full", "landlock", "none"] = option(
        "auto",
        "Isolation of the embedded sandbox: full, landlock, none, or auto (the strongest "
        "available).",
    )
    sandbox_concurrency: int | None = option(
        None,
        "Programs at once, per server; one that sleeps lends its place (None: the executor's "
        "default).",
        AT_LEAST_1,
    )

    @property
    def connection(self) -> dict[str, Any]:
        """The keyword arguments of `grading.sandbox.connect.connect_executor` for these
        settings."""
        return {
            "executor": self.executor,
            "isolation": self.isolation,
            "concurrency": self.sandbox_concurrency,
            "outage_timeout_s": self.outage_timeout,
        }


@chz.chz
class LanguageOptions(ExecutorOptions):
    """The same, with the language of the programs."""

    language: str | None = option(
        None,
        "Language of the programs, for problems with stdin tests: cpp, c, rust, go, java or "
        "javascript (docs/languages.md). None: each problem's own.",
    )


@chz.chz
class SandboxOptions(LanguageOptions):
    """The same, with a limit of the programs."""

    reward_timeout: float | None = option(
        None, "CPU seconds per test; a problem's own lower limit wins (None: always).", ABOVE_0
    )


@chz.chz
class DeviceOptions:
    """Where and how the embedded engine computes."""

    device: str = option("auto", "Device of the embedded engine: auto, cpu, cuda or mps.")
    dtype: str = option(
        "auto",
        "Weights and activations of the embedded engine: auto (bfloat16 on cuda, else float32), "
        "float32, or bfloat16 (float32 on a CPU without it). Adapters: float32.",
        check_that(lambda name: name in DTYPES, "auto, float32 or bfloat16"),
    )
    threads: int | None = option(
        None,
        "CPU threads of the embedded engine (None: torch's choice). With overlap on few cores, 1.",
        AT_LEAST_1,
    )


@chz.chz
class ModelOptions(DeviceOptions):
    """A model, and where it runs."""

    backend: str = option(
        "auto",
        "Where the model runs: embedded, tinker, or a server's http://host:port. auto: tinker if "
        "TINKER_API_KEY or TINKER_BASE_URL is set (also in .env), else embedded.",
    )
    model_name: str | None = option(
        None,
        "tiny (built in), smollm2, a folder, a .gguf file, or the hub id of a causal LM. eval: "
        "also an endpoint's model, or reference (the set's solutions).",
    )
    renderer: str = option(
        "auto",
        "How conversations become tokens; docs/renderers.md lists them. auto: the renderer that "
        "agrees with the model's chat template, else chat_template; without one, role_colon.",
    )


@chz.chz
class SamplingOptions(ModelOptions, OutageOptions):
    """The same, with how the model samples."""

    max_tokens: int = option(
        24576,
        "Maximum tokens per completion; capped to what the model's context leaves.",
        AT_LEAST_1,
    )
    temperature: float = option(1.0, "Sampling temperature. 0: greedy (in eval with n=1).", FROM_0)
    top_p: float = option(
        1.0,
        "Nucleus sampling; 1: off. Log-probabilities stay those of the whole distribution.",
        SHARE,
    )
    top_k: int = option(-1, "Sample from the k likeliest tokens only. -1: from all.", ALL_OR_SOME)
    system_prompt: str | None = option(
        None,
        "System message, in place of the prompt template's own. Empty: none. None: the template's.",
    )
    seed: int = option(
        0, "Seed of sampling; in training also of problem order and LoRA initialization.", SEED
    )
