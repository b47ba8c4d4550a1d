"""The four functions by their properties: what each gives is compared with what is right, and what is wrong is named."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal

from code_rl.audit.checklist import Check, found, verdict
from code_rl.audit.script.mistakes import ADVANTAGES, FIELDS, SKIPPING, DatumCase, Mistake, right_fields
from code_rl.audit.script.student import FUNCTIONS, SilentError, Student

Reading = Literal["either", "prompt", "shifted"]
"""What `ob_len` counts: the tokens of the prompt, or one less (the cookbook's, of targets)."""
REWARDS = (
    [1.0, 0.0, 0.0, 0.0],
    [0.2, 1.1, -0.1, 0.5, 0.6],
    [0.0, 1.0, 1.0],
    [3.0, 0.0, -2.0, 0.5, 1.0, 0.25, 0.0, 1.0, 0.75, -0.5, 0.1, 2.0],
)
GROUPS: dict[str, tuple[list[float], bool]] = {
    "zeros": ([0.0, 0.0, 0.0, 0.0], True),
    "rounding noise": ([1.4e-17, 1.4e-17, -2.8e-17], True),
    "empty": ([], True),
    "mixed": ([0.75, -0.25, -0.25, -0.25], False),
    "one zero": ([0.5, 0.0, -0.5], False),
    "first is zero": ([0.0, 0.5, -0.5], False),
    "last is zero": ([0.5, -0.5, 0.0], False),
    "small": ([1e-3, -5e-4, -5e-4], False),
    "all positive": ([0.1, 0.4], False),
    "all negative": ([-0.1, -0.4], False),
}
CASES = (
    DatumCase([11, 12, 13, 14, 21, 22, 23], [-0.1, -0.2, -0.3], 4, 0.75),
    DatumCase([31, 32, 41, 42, 43, 44, 45], [-1.5, -0.25, -2.0, -0.75, -0.5], 2, -0.5),
    DatumCase([51, 61, 62], [-0.4, -0.6], 1, 1.5),
    DatumCase([71, 72, 71, 73, 72, 71, 74, 74], [-0.3, 0.0, -0.7, -0.2], 4, 1.25),
)
ADAM = {
    "learning_rate": 0.00321,
    "beta1": 0.85,
    "beta2": 0.93,
    "eps": 1e-9,
    "weight_decay": 0.01,
    "grad_clip_norm": 0.7,
}
_CLOSE = 1e-4
_ROUGH = 2e-2
_ZERO = 1e-6


async def check_functions(student: Student, reading: Reading) -> AsyncIterator[list[Check]]:
    """The checks of each function in turn."""
    make_datum = functools.partial(_make_datum, reading=reading)
    parts: list[Callable[[Student], Awaitable[list[Check]]]] = [
        _compute_advantages,
        _should_skip,
        make_datum,
        _train_step,
    ]
    for name, part in zip(FUNCTIONS, parts, strict=True):
        try:
            if name in student.has:
                yield await part(student)
            else:
                yield [found(name, "is there", "missing_function", words={"function": name})]
        except SilentError as silent:
            yield [found(name, "comes to an end", silent.mistake, words=silent.words)]


async def _compute_advantages(student: Student) -> list[Check]:
    part, name = "compute_advantages", "is reward − mean"
    calls = [await student.call(part, rewards) for rewards in REWARDS]
    if failed := _exception(part, REWARDS, calls):
        return [failed]
    right = [[reward - math.fsum(rewards) / len(rewards) for reward in rewards] for rewards in REWARDS]
    values = [_numbers(call["value"], len(rewards)) for rewards, call in zip(REWARDS, calls, strict=True)]
    raw = [call["value"] for call in calls]
    again = (await student.call(part, REWARDS[1])).get("value")
    if again != raw[1]:
        compared = found(part, name, "random", REWARDS[1], right[1], f"{raw[1]}, then {again}")
    elif None in values:
        at = values.index(None)
        compared = found(part, name, "not_one_each", REWARDS[at], right[at], raw[at])
    else:
        remembered = Mistake("remembered", lambda r: [reward - REWARDS[0][0] + right[0][0] for reward in r])
        compared = _compared(part, name, REWARDS, REWARDS, right, values, (*ADVANTAGES, remembered))
    checks = [_unchanged(part, [[rewards] for rewards in REWARDS], calls), compared]
    for name, rewards, mistake in (
        ("is zero where all rewards are equal", [0.1] * 7, "equal_rewards"),
        ("is zero for one answer", [1.0], "one_answer"),
        ("takes an empty group", [], "empty_rewards"),
    ):
        call = await student.call(part, rewards)
        numbers, zeros = _numbers(call.get("value"), len(rewards)), [0.0] * len(rewards)
        fine = numbers is not None and all(abs(number) <= _ZERO for number in numbers)
        got = call.get("failed") or call["value"]
        if numbers and not fine and compared.mistake == "standard_deviation" and max(map(abs, numbers)) <= _ROUGH:
            checks.append(found(part, name, "noise_enlarged", rewards, zeros, got, status="variant"))
        elif fine:
            checks.append(Check(part, name))
        elif rewards:
            nan = numbers is not None and any(math.isnan(number) for number in numbers)
            why = " Dividing by a deviation of zero gives NaN." if nan else ""
            checks.append(found(part, name, mistake, rewards, zeros, got, words={"why": why}))
        else:  # no loop need come to that
            checks.append(found(part, name, mistake, rewards, zeros, got, status="variant"))
    return checks


async def _should_skip(student: Student) -> list[Check]:
    part, name = "should_skip", "skips groups without a signal, and no others"
    calls = {group: await student.call(part, advantages) for group, (advantages, _) in GROUPS.items()}
    asked = {group: GROUPS[group][0] for group in calls if group != "empty"}
    if failed := _exception(part, list(asked.values()), [calls[group] for group in asked]):
        return [failed]
    checks = [_unchanged(part, [[given] for given, _ in GROUPS.values()], list(calls.values()))]
    for group, given in asked.items():
        if not isinstance(got := calls[group]["value"], bool):
            return [*checks, found(part, "returns a bool", "no_bool", given, "True or False", got)]
    wrong = frozenset(group for group, call in calls.items() if call.get("value") is not GROUPS[group][1])
    mistake = next((mistake for mistake, fits in SKIPPING if fits(wrong)), "skips_others")
    each = {group: GROUPS[group] for group in GROUPS if group in wrong}
    groups = "; ".join(f"{advantages} ({group})" for group, (advantages, _) in each.items())
    expected = "; ".join(str(skips) for _, skips in each.values())
    got = "; ".join(str(calls[group].get("failed") or calls[group]["value"]) for group in each)
    return [*checks, verdict(not wrong, part, name, mistake, groups, expected, got)]


async def _make_datum(student: Student, reading: Reading) -> list[Check]:
    """Under each reading of `ob_len` that is allowed: that which fits better, the prompt's tokens where both do."""
    tried = []
    for shift, one in enumerate(("prompt", "shifted")):
        if reading in ("either", one):
            asked = [[case.tokens, case.logprobs, case.prompt - shift, case.advantage] for case in CASES]
            tried.append((shift, _judged_datums(asked, [await student.call("make_datum", *given) for given in asked])))
    shift, judged = min(tried, key=lambda one: sum(check.status == "failed" for check in one[1]))
    checks = list(dict.fromkeys(judged))
    if shift and reading == "either" and not any(check.status == "failed" for check in checks):
        checks.append(found("make_datum", "what ob_len counts", "ob_len_shifted", status="variant"))
    return checks


def _judged_datums(asked: list[list[Any]], calls: list[dict[str, Any]]) -> list[Check]:
    """Where there is no datum to look at, as many failures as there are fields: the other reading may have one."""
    part = "make_datum"
    if failed := _exception(part, asked, calls):
        return [failed] * len(FIELDS)
    datums, right = [call["value"] for call in calls], [right_fields(case) for case in CASES]
    for datum in datums:
        if not isinstance(datum, dict) or set(FIELDS) - {"inputs"} - set(datum.get("fields", ())):
            return [found(part, "is a whole datum", "no_datum", asked[0], "", datum)] * len(FIELDS)
    checks = [_unchanged(part, asked, calls)]
    for name, mistakes in FIELDS.items():
        raw = [datum["tokens"] if name == "inputs" else datum["fields"][name]["data"] for datum in datums]
        wanted = [fields[name] for fields in right]
        checks.append(_compared(part, name, CASES, asked, wanted, [_numbers(each) for each in raw], mistakes))
    dtypes = {name: field["dtype"] for name, field in datums[0]["fields"].items()}
    types = {name: "int64" if name == "target_tokens" else "float32" for name in dtypes}
    checks.append(verdict(dtypes == types, part, "types", "wrong_type", "", types, dtypes))
    masks = [case.along(lambda target, case=case: float(target >= case.first)) for case in CASES]  # type: ignore[misc]
    for name in sorted(set(dtypes) - set(FIELDS)):
        values = [datum["fields"][name]["data"] for datum in datums]
        if values == masks:
            checks.append(found(part, f"field {name}", "extra_field", status="variant"))
        else:
            checks.append(found(part, f"field {name}", "weights_on_prompt", asked[0], masks[0], values[0]))
    return checks


async def _train_step(student: Student) -> list[Check]:
    part = "train_step"
    datums = [_sent(right_fields(case)) for case in CASES]
    call = await student.call(part, datums, ADAM)
    if failed := _exception(part, [f"{len(datums)} datums"], [call]):
        return [failed]
    events: list[list[Any]] = call["events"]
    submitted = [(at, event[1], event[2]) for at, event in enumerate(events) if event[0] == "submit"]
    waits = [(at, event[1]) for at, event in enumerate(events) if event[0] == "wait"]
    passes = [(at, content) for at, name, content in submitted if name == "forward_backward"]
    steps = [(at, content) for at, name, content in submitted if name == "optim_step"]
    order = " → ".join(e[1] if e[0] == "submit" else f"wait for {submitted[e[1]][1]}" for e in events) or "nothing"

    def check(fine: bool, name: str, mistake: str, expected: object = "", got: object = order) -> None:
        checks.append(verdict(fine, part, name, mistake, f"{len(datums)} datums", expected, got))

    checks: list[Check] = []
    check(bool(passes), "submits a gradient", "no_gradient")
    check(len(steps) == 1, "takes one optimizer step", "several_steps" if steps else "no_step")
    if passes:
        given = [_canonical(datum) for datum in datums]
        sent = [_canonical(datum) for _, content in passes for datum in content["datums"]]
        more, fewer = Counter(sent) - Counter(given), Counter(given) - Counter(sent)
        mistake = "left_out" if not more else "sent_twice" if not fewer and set(more) <= set(given) else "altered"
        check(not more and not fewer, "sends every datum once", mistake, f"{len(given)} datums", f"{len(sent)} datums")
        losses = sorted({str(content["loss"]) for _, content in passes})
        if set(losses) <= {"ppo", "cispo"}:
            checks.append(found(part, "the loss", "other_loss", "", "", losses, status="variant"))
        else:
            check(losses == ["importance_sampling"], "the loss", "wrong_loss", "importance_sampling", losses)
        configs = [config for _, content in passes if _changes(config := content["config"], losses)]
        check(not configs, "the loss's settings", "loss_config", "none", configs)
    if passes and steps:
        in_order = passes[-1][0] < steps[0][0]
        check(in_order, "gradient before step", "step_first")
        if in_order and len(steps) == 1:
            between = any(at < steps[0][0] and submitted[one][1] == "forward_backward" for at, one in waits)
            check(not between, "submits both before it waits", "waited_between")
        check({number for _, number in waits} == set(range(len(submitted))), "waits for both", "not_waited")
    if steps:
        got = steps[0][1] if isinstance(steps[0][1], dict) else {}
        same = all(got.get(name) == value for name, value in ADAM.items())
        check(same, "hands on adam_params", "adam_ignored", ADAM, steps[0][1])
    return checks


def _changes(config: Any, losses: list[str]) -> bool:
    """Whether these settings make another loss of it. How far `ppo` and `cispo` clip is theirs to say."""
    if not isinstance(config, dict):
        return config is not None
    others = set(config) - {"temperature"}
    return config.get("temperature", 1.0) != 1.0 or bool(others and losses == ["importance_sampling"])


def _sent(fields: dict[str, list[Any]]) -> dict[str, Any]:
    """A datum as `calls` reads it."""
    dtypes = {name: "int64" if name == "target_tokens" else "float32" for name in fields if name != "inputs"}
    return {
        "tokens": fields["inputs"],
        "fields": {name: {"data": fields[name], "dtype": dtype} for name, dtype in dtypes.items()},
    }


def _canonical(datum: Any) -> str:
    """The same for a datum before and after float32; what is no datum, or holds no numbers, as it came."""
    if not isinstance(datum, dict) or "fields" not in datum:
        return json.dumps(datum)
    raw = {name: field["data"] for name, field in sorted(datum["fields"].items())}
    numbers = {name: _numbers(data) for name, data in raw.items()}
    fields = {name: raw[name] if data is None else [round(each, 4) for each in data] for name, data in numbers.items()}
    return json.dumps([datum["tokens"], fields])


def _compared(
    part: str,
    name: str,
    cases: Sequence[Any],
    asked: Sequence[Any],
    right: Sequence[list[Any]],
    values: Sequence[list[float] | None],
    mistakes: Sequence[Mistake],
) -> Check:
    """Passed where all `values` are right; else the mistake that explains all of them, shown by the first that is wrong."""
    at = next((at for at, got in enumerate(values) if not _alike(got, right[at])), None)
    if at is None:
        return Check(part, name)
    told, got = (asked[at], right[at], values[at]), values[at]
    for mistake in mistakes:
        if all(_alike(got, mistake.answers(case)) for case, got in zip(cases, values, strict=True)):
            return found(part, name, mistake.name, *told, status="variant" if mistake.variant else "failed")
    if all(_alike(got, wanted, _ROUGH) for got, wanted in zip(values, right, strict=True)):
        return found(part, name, "low_precision", *told)
    return found(part, name, "wrong_numbers" if got and len(got) == len(right[at]) else "wrong_length", *told)


def _alike(got: list[float] | None, wanted: Sequence[float], within: float = _CLOSE) -> bool:
    """NaN is like nothing."""
    if got is None or len(got) != len(wanted):
        return False
    return all(abs(a - b) <= within * max(1.0, abs(b)) for a, b in zip(got, wanted, strict=True))


def _numbers(value: Any, length: int | None = None) -> list[float] | None:
    if not isinstance(value, list) or length not in (None, len(value)):
        return None
    fine = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    try:
        return [float(each) for each in value] if fine else None
    except OverflowError:  # an integer beyond every float
        return None


def _unchanged(part: str, given: Sequence[list[Any]], calls: Sequence[dict[str, Any]]) -> Check:
    pairs = [(before, call["after"]) for before, call in zip(given, calls, strict=True) if "after" in call]
    before, after = next((pair for pair in pairs if pair[0] != pair[1]), ([], []))
    return verdict(before == after, part, "leaves its arguments alone", "arguments_changed", before, "the same", after)


def _exception(part: str, given: Sequence[Any], calls: Sequence[dict[str, Any]]) -> Check | None:
    for one, call in zip(given, calls, strict=True):
        if why := call.get("failed"):
            writes = "Read-only file system" in why
            return found(part, "can be called", "writes" if writes else "raised", one, "", why)
    return None
