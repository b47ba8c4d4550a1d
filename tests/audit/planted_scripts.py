"""Students' files as data: a right one, and others that replace one of its functions, by the mistakes that each deserves to hear of."""

from __future__ import annotations

RIGHT = {
    "compute_advantages": """
def compute_advantages(rewards):
    if not rewards:
        return []
    baseline = sum(rewards) / len(rewards)
    return [reward - baseline for reward in rewards]
""",
    "should_skip": """
def should_skip(advantages):
    return all(abs(advantage) < 1e-8 for advantage in advantages)
""",
    "make_datum": """
def make_datum(tokens, logprobs, ob_len, advantage):
    before = ob_len - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": np.array(tokens[1:]),
            "logprobs": np.array([0.0] * before + logprobs, dtype=np.float32),
            "advantages": np.array([0.0] * before + [advantage] * len(logprobs), dtype=np.float32),
        },
    )
""",
    "train_step": """
def train_step(training_client, datums, adam_params):
    passed = training_client.forward_backward(datums, "importance_sampling")
    stepped = training_client.optim_step(adam_params)
    passed.result()
    stepped.result()
""",
}
HEAD = "import asyncio\nimport random\nimport numpy as np\nimport tinker\nfrom tinker import types\n"


def file_of(*functions: str) -> str:
    """The right file with these functions in place of its own."""
    given = {function.split("def ")[1].split("(")[0]: function for function in functions}
    return HEAD + "\n".join((RIGHT | given).values())


def _advantages(expression: str, guard: str = "    if not rewards:\n        return []\n") -> str:
    return f"def compute_advantages(rewards):\n{guard}    mean = sum(rewards) / len(rewards)\n    return {expression}\n"


def _skip(expression: str) -> str:
    return f"def should_skip(advantages):\n    return {expression}\n"


def _datum(
    inputs: str = "tokens[:-1]",
    targets: str = "tokens[1:]",
    logprobs: str = "[0.0] * before + logprobs",
    advantages: str = "[0.0] * before + [advantage] * len(logprobs)",
    first: str = "",
    more: str = "",
    dtype: str = "np.float32",
) -> str:
    return f"""
def make_datum(tokens, logprobs, ob_len, advantage):
    before = ob_len - 1
    {first or "pass"}
    return types.Datum(
        model_input=types.ModelInput.from_ints({inputs}),
        loss_fn_inputs={{
            "target_tokens": np.array({targets}),
            "logprobs": np.array({logprobs}, dtype=np.float32),
            "advantages": np.array({advantages}, dtype={dtype}),
            {more}
        }},
    )
"""


def _step(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def train_step(training_client, datums, adam_params):\n{body}\n"


PASS = 'passed = training_client.forward_backward(datums, "importance_sampling")'
STEP = "stepped = training_client.optim_step(adam_params)"
WAIT = ("passed.result()", "stepped.result()")

MISTAKEN: dict[str, tuple[str, set[str]]] = {
    # name: the function, and all mistakes that it must hear of
    "rewards as they are": (_advantages("list(rewards)"), {"mean_not_subtracted", "equal_rewards", "one_answer"}),
    "mean minus reward": (_advantages("[mean - r for r in rewards]"), {"sign_flipped"}),
    "standard deviation": (_advantages("[(r - mean) / (np.std(rewards) + 1e-6) for r in rewards]"), {"standard_deviation"}),
    "standard deviation without a floor": (_advantages("[float((r - mean) / np.std(rewards)) for r in rewards]"), {"standard_deviation", "equal_rewards", "one_answer"}),
    "sum for mean": (_advantages("[r - sum(rewards) for r in rewards]"), {"sum_subtracted", "equal_rewards"}),
    "best as baseline": (_advantages("[r - max(rewards) for r in rewards]"), {"best_subtracted"}),
    "median as baseline": (_advantages("[r - float(np.median(rewards)) for r in rewards]"), {"median_subtracted"}),
    "mean of deviations": (_advantages("[(r - mean) / len(rewards) for r in rewards]"), {"divided_by_count"}),
    "sorted": (_advantages("[r - mean for r in sorted(rewards)]"), {"order_changed"}),
    "empty rewards": (_advantages("[r - mean for r in rewards]", guard=""), {"empty_rewards"}),
    "sorts in place": ("def compute_advantages(rewards):\n    m = sum(rewards) / len(rewards) if rewards else 0\n    for i, r in enumerate(rewards):\n        rewards[i] = r - m\n    return rewards\n", {"arguments_changed"}),
    "random tie-break": (_advantages("[r - mean + random.gauss(0, 0.01) for r in rewards]"), {"random", "equal_rewards", "one_answer"}),
    "the first eight only": (_advantages("[r - mean for r in rewards]", guard="    rewards = rewards[:8]\n    if not rewards:\n        return []\n"), {"not_one_each"}),
    "clips rewards": (_advantages("[r - mean for r in rewards]", guard="    rewards = [min(1.2, max(-0.5, r)) for r in rewards]\n    if not rewards:\n        return []\n"), {"wrong_numbers"}),
    "integers beyond floats": (_advantages("[10**400 for r in rewards]"), {"not_one_each", "equal_rewards", "one_answer"}),
    "integers beyond JSON": (_advantages("[10**5000 for r in rewards]"), {"raised"}),
    "half a surrogate pair": (_skip("'\\ud800'"), {"no_bool"}),
    "raises half a surrogate pair": ("def should_skip(advantages):\n    raise ValueError('\\udc80')\n", {"raised"}),
    "one number": (_advantages("mean"), {"not_one_each", "equal_rewards", "one_answer"}),
    "skips nothing": (_skip("False"), {"never_skips"}),
    "skips everything": (_skip("True"), {"always_skips"}),
    "exactly zero": (_skip("all(a == 0 for a in advantages)"), {"no_tolerance"}),
    "sum of advantages": (_skip("abs(sum(advantages)) < 1e-8"), {"sum_is_zero"}),
    "all right answers": (_skip("all(a > -1e-8 for a in advantages)"), {"skips_all_positive"}),
    "no absolute value": (_skip("max(advantages, default=0) < 1e-8"), {"looks_at_the_largest"}),
    "any zero": (_skip("not advantages or any(abs(a) < 1e-8 for a in advantages)"), {"any_instead_of_all"}),
    "first advantage only": (_skip("not advantages or abs(advantages[0]) < 1e-8"), {"looks_at_the_first"}),
    "last advantage only": (_skip("abs([0.0, *advantages][-1]) < 1e-8"), {"looks_at_the_last"}),
    "mask by value": (_datum(advantages="[advantage if tokens.index(t) >= ob_len else 0.0 for t in tokens[1:]]"), {"mask_by_value"}),
    "certain tokens dropped": (_datum(first="logprobs = [l for l in logprobs if l]; before = len(tokens) - 1 - len(logprobs)"), {"wrong_numbers"}),
    "probabilities": (_datum(logprobs="[0.0] * before + list(np.exp(logprobs))"), {"probabilities"}),
    "trains at another temperature": (_step(PASS[:-1] + ', {"temperature": 0.2})', STEP, *WAIT), {"loss_config"}),
    "keeps the first mean": ("KEPT = {}\ndef compute_advantages(rewards):\n    mean = KEPT.setdefault('mean', sum(rewards) / max(1, len(rewards)))\n    return [r - mean for r in rewards]\n", {"remembered", "equal_rewards", "one_answer"}),
    "bfloat16": ("def compute_advantages(rewards):\n    import torch\n    r = torch.tensor(rewards, dtype=torch.bfloat16)\n    return (r - r.mean()).float() if len(r) else []\n", {"low_precision"}),
    "wide tolerance": (_skip("all(abs(a) < 1.9e-3 for a in advantages)"), {"tolerance_too_wide"}),
    "skip inverted": (_skip("any(abs(a) > 1e-8 for a in advantages)"), {"inverted"}),
    "empty skip": (_skip("max(abs(a) for a in advantages) < 1e-8"), {"empty_group"}),
    "targets are inputs": (_datum(targets="tokens[:-1]"), {"targets_not_shifted"}),
    "inputs not cut": (_datum(inputs="tokens"), {"inputs_not_cut"}),
    "prompt trained": (_datum(advantages="[advantage] * (len(tokens) - 1)"), {"prompt_not_masked"}),
    "last token only": (_datum(advantages="[0.0] * (len(tokens) - 2) + [advantage]"), {"last_token_only"}),
    "all one late": (_datum(first="logprobs = logprobs[:-1]; before = ob_len"), {"mask_late", "logprobs_late"}),
    "logprobs in front": (_datum(logprobs="logprobs + [0.0] * before"), {"logprobs_in_front"}),
    "no logprobs": (_datum(logprobs="[0.0] * (len(tokens) - 1)"), {"logprobs_left_out"}),
    "advantage flipped": (_datum(advantages="[0.0] * before + [-advantage] * len(logprobs)"), {"advantage_flipped"}),
    "advantage per token": (_datum(advantages="[0.0] * before + [advantage / len(logprobs)] * len(logprobs)"), {"mean_over_tokens"}),
    "advantage in integers": (_datum(dtype="np.int64"), {"advantage_cut", "wrong_type"}),
    "float targets": (_datum(targets="[float(t) for t in tokens[1:]]"), {"wrong_type"}),
    "weights on the prompt": (_datum(more='"weights": np.ones(len(tokens) - 1, dtype=np.float32),'), {"weights_on_prompt"}),
    "eats the tokens": (_datum(first="end = tokens.pop(); tokens, logprobs = tokens + [end], logprobs"), {"arguments_changed"}),
    "waits between": (_step(PASS, "passed.result()", STEP, "stepped.result()"), {"waited_between"}),
    "step first": (_step(STEP, PASS, *WAIT), {"step_first"}),
    "own learning rate": (_step(PASS, "stepped = training_client.optim_step(types.AdamParams(learning_rate=1e-4))", *WAIT), {"adam_ignored"}),
    "datums twice": (_step("datums = datums + datums", PASS, STEP, *WAIT), {"sent_twice"}),
    "first datum only": (_step("datums = datums[:1]", PASS, STEP, *WAIT), {"left_out"}),
    "no step": (_step(PASS, "passed.result()"), {"no_step"}),
    "no gradient": (_step(STEP, "stepped.result()"), {"no_gradient"}),
    "a step for each": (_step("for datum in datums:", '    p = training_client.forward_backward([datum], "importance_sampling")', "    s = training_client.optim_step(adam_params)", "    p.result(); s.result()"), {"several_steps", "step_first"}),
    "never waits": (_step(PASS, STEP), {"not_waited"}),
    "asks what no future has": (_step(PASS, STEP, "while not stepped.done(): pass"), {"raised"}),
    "imitates": (_step(PASS.replace("importance_sampling", "cross_entropy"), STEP, *WAIT), {"wrong_loss"}),
}  # fmt: skip

UNUSUAL: dict[str, tuple[str, ...]] = {
    # right, each in its own way
    "numpy throughout": (
        "def compute_advantages(rewards):\n    r = np.asarray(rewards, dtype=np.float64)\n    return r - r.mean() if r.size else r\n",
        "def should_skip(advantages):\n    return np.allclose(advantages, 0, atol=1e-8)\n",
    ),
    "torch throughout": (
        "def compute_advantages(rewards):\n    import torch\n    r = torch.tensor(rewards, dtype=torch.float64)\n    return r - r.mean() if len(r) else r\n",
        """
def make_datum(tokens, logprobs, ob_len, advantage):
    import torch
    mask = torch.zeros(len(tokens) - 1)
    mask[ob_len - 1:] = 1
    old = torch.zeros(len(tokens) - 1)
    old[ob_len - 1:] = torch.tensor(logprobs)
    fields = {"target_tokens": torch.tensor(tokens[1:]), "logprobs": old, "advantages": mask * advantage}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={k: types.TensorData.from_torch(v) for k, v in fields.items()})
""",
    ),
    "settings of the loss as they are without": (
        _step(PASS[:-1] + ', {"temperature": 1.0})', STEP, *WAIT),
    ),
    "tokenizer, a forward pass and futures of the standard library": (
        _step("assert training_client.get_tokenizer().decode([104, 105]) == 'hi'", 'training_client.forward(datums, "importance_sampling").result()', PASS, STEP, "import concurrent.futures", "for done in concurrent.futures.as_completed([passed.future(), stepped.future()]):", "    done.result()"),
    ),
    "coroutines": (
        "async def train_step(training_client, datums, adam_params):\n    " + PASS + "\n    " + STEP + "\n    await asyncio.gather(asyncio.create_task(passed.coroutine()), asyncio.wrap_future(stepped.future()))\n",
    ),
    "asynchronous": (
        """
async def train_step(training_client, datums, adam_params):
    passed = await training_client.forward_backward_async(datums, loss_fn="importance_sampling")
    stepped = await training_client.optim_step_async(adam_params)
    await asyncio.gather(passed.result_async(), stepped.result_async())
""",
    ),
    "lists and the cookbook's ob_len": (
        """
def make_datum(tokens, logprobs, ob_len, advantage):
    fields = {"target_tokens": tokens[1:], "logprobs": [0.0] * ob_len + logprobs, "advantages": [0.0] * ob_len + [advantage] * (len(tokens) - 1 - ob_len)}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=fields)
""",
    ),
    "variance with a tolerance, batches of one": (
        "def should_skip(advantages):\n    return len(advantages) < 2 or float(np.var(advantages)) < 1e-12\n",
        """
def train_step(training_client, datums, adam_params):
    passed = [training_client.forward_backward([datum], "importance_sampling") for datum in reversed(datums)]
    stepped = training_client.optim_step(adam_params=adam_params)
    for future in [*passed, stepped]:
        future.result(timeout=60)
""",
    ),
}  # fmt: skip

DEVIATIONS: dict[str, str] = {
    # by the standard deviation as others compute it: named, and no mistake
    "TRL in numpy": "def compute_advantages(rewards):\n    r = np.array(rewards)\n    return (r - r.mean()) / (r.std() + 1e-4) if len(r) else []\n",
    **{
        name: f"def compute_advantages(rewards):\n    import torch\n    r = torch.tensor(rewards)\n    return (r - r.mean()) / (r.std() + {epsilon}) if len(r) > 1 else torch.zeros(len(r))\n"
        for name, epsilon in (("TRL", 1e-4), ("verl", 1e-6))
    },
}  # fmt: skip

HOSTILE: dict[str, tuple[str, set[str]]] = {
    # name: the whole file, and what it must hear
    "no file of Python": ("def compute_advantages(rewards:\n", {"does_not_load"}),
    "imports what is not there": ("import no_such_module\n", {"does_not_load"}),
    "exits when imported": ("import sys\nsys.exit(3)\n", {"does_not_load"}),
    "dies when imported": ("import os\nos._exit(3)\n", {"does_not_load"}),
    "lacks a function": (HEAD + "".join(text for name, text in RIGHT.items() if name != "should_skip"), {"missing_function"}),
    "loops for ever": (file_of("def should_skip(advantages):\n    while True: pass\n"), {"endless"}),
    "prints much": (file_of("def should_skip(advantages):\n    print('x' * 5_000_000, flush=True)\n    return all(abs(a) < 1e-8 for a in advantages)\n"), set()),
    "answers on stdout": (file_of("def should_skip(advantages):\n    import os\n    os.write(1, b'{\"value\": true}\\n')\n    input()\n"), {"raised"}),
    "exits": (file_of("def should_skip(advantages):\n    raise SystemExit(0)\n"), {"raised"}),
    "dies": (file_of("def should_skip(advantages):\n    import os\n    os._exit(0)\n"), {"ended"}),
    "writes": (file_of("def should_skip(advantages):\n    open(__file__ + '.log', 'w').write('x')\n    return False\n"), {"writes"}),
    "returns much": (file_of("def should_skip(advantages):\n    return ['x' * 1000] * 20_000\n"), {"ended"}),
    "returns nothing": (file_of("def should_skip(advantages):\n    pass\n"), {"no_bool"}),
    "raises": (file_of("def make_datum(tokens, logprobs, ob_len, advantage):\n    raise NotImplementedError\n"), {"raised"}),
    "returns a dict": (file_of("def make_datum(tokens, logprobs, ob_len, advantage):\n    return {'tokens': tokens}\n"), {"no_datum"}),
}  # fmt: skip
