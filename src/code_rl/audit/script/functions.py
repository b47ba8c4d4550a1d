"""The four functions by their properties: what each gives is compared with what is right, and what is wrong is named."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from code_rl.audit.checklist import Check, shown
from code_rl.audit.script.mistakes import ADVANTAGES, FIELDS, SKIPPING, Drawn, Mistake, right_fields
from code_rl.audit.script.student import FUNCTIONS, SilentError, Student

Reading = Literal["either", "prompt", "shifted"]
"""What `ob_len` counts: the tokens of the prompt, or one less (the cookbook's, of targets)."""
REWARDS = ([1.0, 0.0, 0.0, 0.0], [0.2, 1.1, -0.1, 0.5, 0.6], [0.0, 1.0, 1.0])
GROUPS: dict[str, tuple[list[float], bool]] = {
    "zeros": ([0.0, 0.0, 0.0, 0.0], True),
    "rounding noise": ([1.4e-17, 1.4e-17, -2.8e-17], True),
    "empty": ([], True),
    "mixed": ([0.75, -0.25, -0.25, -0.25], False),
    "one zero": ([0.5, 0.0, -0.5], False),
    "small": ([2e-3, -1e-3, -1e-3], False),
    "all positive": ([0.1, 0.4], False),
    "all negative": ([-0.1, -0.4], False),
}
CASES = (
    Drawn([11, 12, 13, 14, 21, 22, 23], [-0.1, -0.2, -0.3], 4, 0.75),
    Drawn([31, 32, 41, 42, 43, 44, 45], [-1.5, -0.25, -2.0, -0.75, -0.5], 2, -0.5),
    Drawn([51, 61, 62], [-0.4, -0.6], 1, 1.5),
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
_ZERO = 1e-6


async def check_functions(student: Student, reading: Reading) -> AsyncIterator[list[Check]]:
    """The checks of each function in turn."""
    parts = (_compute_advantages, _should_skip, lambda asked: _make_datum(asked, reading), _train_step)
    for name, part in zip(FUNCTIONS, parts, strict=True):
        try:
            if name in student.has:
                yield await part(student)
            else:
                yield [Check(name, "is there", "failed", "missing_function", f"The file has no function {name}.")]
        except SilentError as silent:
            yield [Check(name, "comes to an end", "failed", silent.mistake, str(silent))]


async def _compute_advantages(student: Student) -> list[Check]:
    part, calls = "compute_advantages", [await student.call("compute_advantages", rewards) for rewards in REWARDS]
    failed = _first_failure(part, zip(REWARDS, calls, strict=True))
    if failed:
        return [failed]
    values = [_numbers(call["value"], len(rewards)) for rewards, call in zip(REWARDS, calls, strict=True)]
    again = await student.call("compute_advantages", REWARDS[1])
    right = [[reward - math.fsum(rewards) / len(rewards) for reward in rewards] for rewards in REWARDS]
    told = [
        (shown(given), shown(wanted), shown(call["value"]))
        for given, wanted, call in zip(REWARDS, right, calls, strict=True)
    ]
    checks = [_unchanged(part, [[rewards] for rewards in REWARDS], calls)]
    if again.get("value") != calls[1]["value"]:
        says = "Two calls with the same rewards give different advantages: nothing here is random."
        checks.append(
            Check(
                part,
                "is reward − mean",
                "failed",
                "random",
                says,
                told[1][0],
                told[1][1],
                f"{told[1][2]}, then {shown(again.get('value'))}",
            )
        )
    elif None in values:
        says = "It must return a list with one number for each reward."
        checks.append(Check(part, "is reward − mean", "failed", "not_one_each", says, *told[values.index(None)]))
    else:
        checks.append(_compared(part, "is reward − mean", REWARDS, right, values, ADVANTAGES, told))
    for name, rewards, mistake, says in (
        ("is zero where all rewards are equal", [0.1] * 7, "equal_rewards", "Equal rewards have advantages of zero; dividing by a deviation of zero gives NaN."),
        ("is zero for one answer", [1.0], "one_answer", "A group of one has no others to compare with: its advantage is zero, not NaN."),
        ("takes an empty group", [], "empty_rewards", "An empty list has no advantages: return []."),
    ):  # fmt: skip
        call = await student.call(part, rewards)
        numbers = _numbers(call.get("value"), len(rewards))
        fine = numbers is not None and all(abs(number) <= _ZERO for number in numbers)
        got = call.get("failed") or shown(call["value"])
        checks.append(
            Check(part, name)
            if fine
            else Check(part, name, "failed", mistake, says, shown(rewards), shown([0.0] * len(rewards)), got)
        )
    return checks


async def _should_skip(student: Student) -> list[Check]:
    part = "should_skip"
    calls = {name: await student.call(part, advantages) for name, (advantages, _) in GROUPS.items()}
    named = [(GROUPS[name][0], call) for name, call in calls.items()]
    failed = _first_failure(part, ((given, call) for given, call in named if given))
    if failed:
        return [failed]
    checks = [_unchanged(part, [[given] for given, _ in named], [call for _, call in named])]
    unclear = next(
        ((given, call["value"]) for given, call in named if given and not isinstance(call["value"], bool)), None
    )
    if unclear:
        says = "It must return True or False."
        return [
            *checks,
            Check(
                part, "returns a bool", "failed", "no_bool", says, shown(unclear[0]), "True or False", shown(unclear[1])
            ),
        ]
    wrong = frozenset(name for name, call in calls.items() if call.get("value") is not GROUPS[name][1])
    if not wrong:
        return [*checks, Check(part, "skips groups without a signal, and no others")]
    mistake, says = next(
        ((name, says) for name, fits, says in SKIPPING if fits(wrong)),
        ("other", "Skip where every advantage is zero, but for rounding."),
    )
    each = [name for name in GROUPS if name in wrong]
    given = "; ".join(f"{shown(GROUPS[name][0])} ({name})" for name in each)
    expected = "; ".join(str(GROUPS[name][1]) for name in each)
    got = "; ".join(str(calls[name].get("failed") or calls[name]["value"]) for name in each)
    return [
        *checks,
        Check(part, "skips groups without a signal, and no others", "failed", mistake, says, given, expected, got),
    ]


async def _make_datum(student: Student, reading: Reading) -> list[Check]:
    """Under each reading of `ob_len` that is allowed: that which fits better, the prompt's tokens where both do."""
    tried = []
    for shift in (0, 1):
        if reading in ("either", ("prompt", "shifted")[shift]):
            calls = [
                await student.call("make_datum", case.tokens, case.logprobs, case.prompt - shift, case.advantage)
                for case in CASES
            ]
            tried.append((shift, _judged_datums(calls, shift)))
    shift, checks = min(tried, key=lambda one: sum(check.status == "failed" for check in one[1]))
    clean = not any(check.status == "failed" for check in checks)
    if shift and reading == "either" and clean:
        says = "You read ob_len as the number of prompt tokens less one (of targets), as the cookbook does. Right, where your loop calls it so."
        checks.append(Check("make_datum", "what ob_len counts", "variant", "ob_len_shifted", says))
    return checks


def _judged_datums(calls: list[dict[str, Any]], shift: int) -> list[Check]:
    part = "make_datum"
    asked = [[case.tokens, case.logprobs, case.prompt - shift, case.advantage] for case in CASES]
    failed = _first_failure(part, zip(asked, calls, strict=True))
    if failed:
        return [failed] * len(FIELDS)
    datums = [call["value"] for call in calls]
    bare = next((datum for datum in datums if not isinstance(datum, dict) or "fields" not in datum), None)
    absent = set() if bare is not None else {name for name in FIELDS if name != "inputs"} - set(datums[0]["fields"])
    if bare is not None or absent:
        says = "It must return a tinker.types.Datum" + (
            f" with {', '.join(sorted(absent))} among its loss_fn_inputs." if absent else "."
        )
        return [
            Check(part, "is a whole datum", "failed", "no_datum", says, got=shown(bare or sorted(datums[0]["fields"])))
        ] * len(FIELDS)
    checks = [_unchanged(part, asked, calls)]
    for name, mistakes in FIELDS.items():
        right = [right_fields(case)[name] for case in CASES]
        raw = [datum["tokens"] if name == "inputs" else datum["fields"][name]["data"] for datum in datums]
        values = [_numbers(value, None) for value in raw]
        told = [(shown(given), shown(wanted), shown(got)) for given, wanted, got in zip(asked, right, raw, strict=True)]
        checks.append(_compared(part, name, CASES, right, values, mistakes, told))
    dtypes = {name: field["dtype"] for name, field in datums[0]["fields"].items()}
    wanted = {name: "int64" if name == "target_tokens" else "float32" for name in dtypes}
    says = "Targets are int64, all else float32: build the arrays with these types."
    same = dtypes == wanted
    checks.append(
        Check(part, "types")
        if same
        else Check(part, "types", "failed", "wrong_type", says, expected=shown(wanted), got=shown(dtypes))
    )
    return checks + [_extra(name, datums) for name in sorted(set(dtypes) - set(FIELDS))]


def _extra(name: str, datums: Sequence[dict[str, Any]]) -> Check:
    values = [datum["fields"][name]["data"] for datum in datums]
    right = [case.along(lambda target, case=case: float(target >= case.first)) for case in CASES]  # type: ignore[misc]
    if values == right:
        says = f"The datum has a field {name!r} more. The loss does not read it, and a service may refuse it: take it off before you send."
        return Check("make_datum", f"field {name}", "variant", "extra_field", says)
    says = f"The field {name!r} must be 0 on the prompt and 1 on the completion; importance_sampling needs no such field at all."
    return Check(
        "make_datum", f"field {name}", "failed", "weights_on_prompt", says, "", shown(right[0]), shown(values[0])
    )


async def _train_step(student: Student) -> list[Check]:
    part = "train_step"
    datums = [
        {"tokens": right["inputs"], "fields": {name: {"data": right[name], "dtype": "int64" if name == "target_tokens" else "float32"} for name in FIELDS if name != "inputs"}}
        for right in map(right_fields, CASES)
    ]  # fmt: skip
    call = await student.call(part, datums, ADAM)
    failed = _first_failure(part, [("three datums", call)])
    if failed:
        return [failed]
    events: list[list[Any]] = call["events"]
    submitted = [(at, event[1], event[2]) for at, event in enumerate(events) if event[0] == "submit"]
    passes, steps = (
        [(at, content) for at, name, content in submitted if name == kind]
        for kind in ("forward_backward", "optim_step")
    )
    order = (
        " → ".join(event[1] if event[0] == "submit" else f"wait for {submitted[event[1]][1]}" for event in events)
        or "nothing"
    )

    def check(name: str, mistake: str, says: str, fine: bool, expected: str = "", got: str = order) -> Check:
        return Check(part, name) if fine else Check(part, name, "failed", mistake, says, "three datums", expected, got)

    checks = [
        check("submits a gradient", "no_gradient", "forward_backward is never called: there is nothing to step along.", bool(passes)),
        check("takes one optimizer step", "no_step" if not steps else "several_steps", "optim_step must be called once for all datums: " + ("without it the weights never change." if not steps else "several steps in one batch move away from the policy that sampled it."), len(steps) == 1),
    ]  # fmt: skip
    if passes:
        sent, given = (
            [_canonical(datum) for datum in data] for data in ([d for _, p in passes for d in p["datums"]], datums)
        )
        more, fewer = Counter(sent) - Counter(given), Counter(given) - Counter(sent)
        mistake = "sent_twice" if not fewer and set(more) <= set(given) else "left_out" if not more else "altered"
        says = {
            "sent_twice": "Datums are sent more than once: their gradients count double.",
            "left_out": "Not all datums are sent.",
            "altered": "What is sent is not what was given: do not change datums here.",
        }[mistake]
        checks.append(
            check(
                "sends every datum once",
                mistake,
                says,
                not more and not fewer,
                "3 datums, once each",
                f"{len(sent)} datums, {len(set(sent) & set(given))} of the three among them",
            )
        )
        losses = sorted({str(content["loss"]) for _, content in passes})
        if set(losses) <= {"ppo", "cispo"}:
            checks.append(
                Check(
                    part,
                    "the loss",
                    "variant",
                    "other_loss",
                    f"You use {losses[0]}, which clips; with one step for each batch it is importance_sampling almost everywhere.",
                )
            )
        else:
            says = "Use loss_fn='importance_sampling', which reads logprobs and advantages" + (
                "; cross_entropy imitates all answers, whatever their reward." if "cross_entropy" in losses else "."
            )
            checks.append(
                check(
                    "the loss",
                    "wrong_loss",
                    says,
                    losses == ["importance_sampling"],
                    "importance_sampling",
                    ", ".join(losses),
                )
            )
    if passes and steps:
        in_order = passes[-1][0] < steps[0][0]
        waited = next((at for at, event in enumerate(events) if event[0] == "wait"), len(events))
        checks.append(
            check(
                "gradient before step",
                "step_first",
                "optim_step is submitted before forward_backward: it steps along the gradient of the batch before, or along none.",
                in_order,
            )
        )
        if in_order and len(steps) == 1:
            says = "You wait for forward_backward before optim_step is submitted. Submit both, then wait for both: a remote service then runs them in one go."
            checks.append(check("submits both before it waits", "waited_between", says, waited > steps[0][0]))
        pending = [
            submitted[number][1]
            for number in set(range(len(submitted))) - {event[1] for event in events if event[0] == "wait"}
        ]
        says = f"The answer to {' and '.join(sorted(set(pending)))} is never waited for: call .result() on it, so that a failure is seen."
        checks.append(check("waits for both", "not_waited", says, not pending))
    if steps:
        ignored = "adam_params is not what optim_step was given: the caller chooses the learning rate."
        checks.append(
            check(
                "hands on adam_params",
                "adam_ignored",
                ignored,
                _same_adam(steps[0][1]),
                shown(list(ADAM.items())),
                shown(steps[0][1]),
            )
        )
    return checks


def _canonical(datum: dict[str, Any]) -> str:
    """The same for a datum before and after float32."""
    fields = {
        name: [round(float(each), 4) for each in field["data"]] for name, field in sorted(datum["fields"].items())
    }
    return json.dumps([datum["tokens"], fields])


def _same_adam(got: Any) -> bool:
    return isinstance(got, dict) and all(got.get(name) == value for name, value in ADAM.items())


def _compared(
    part: str,
    name: str,
    cases: Sequence[Any],
    right: list[Any],
    values: list[Any],
    mistakes: Sequence[Mistake],
    told: list[tuple[str, str, str]],
) -> Check:
    wrong = next(
        (number for number, (got, wanted) in enumerate(zip(values, right, strict=True)) if not _alike(got, wanted)),
        None,
    )
    if wrong is None:
        return Check(part, name)
    for mistake in mistakes:
        if all(_alike(got, mistake.answers(case)) for case, got in zip(cases, values, strict=True)):
            return Check(
                part, name, "variant" if mistake.variant else "failed", mistake.name, mistake.says, *told[wrong]
            )
    if values[wrong] is not None and len(values[wrong]) != len(right[wrong]):
        says = f"It has {len(values[wrong])} numbers where {len(right[wrong])} belong."
        return Check(part, name, "failed", f"{name}_length", says, *told[wrong])
    return Check(part, name, "failed", f"{name}_other", "Compare what was expected with what came.", *told[wrong])


def _alike(got: list[float] | None, wanted: Sequence[float]) -> bool:
    """NaN is like nothing."""
    if got is None or len(got) != len(wanted):
        return False
    return all(abs(a - b) <= _CLOSE * max(1.0, abs(b)) for a, b in zip(got, wanted, strict=True))


def _numbers(value: Any, length: int | None) -> list[float] | None:
    fine = isinstance(value, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )
    return [float(each) for each in value] if fine and length in (None, len(value)) else None


def _unchanged(part: str, given: Sequence[list[Any]], calls: Sequence[dict[str, Any]]) -> Check:
    changed = next(
        (
            (before, call["after"])
            for before, call in zip(given, calls, strict=True)
            if call.get("after", before) != before
        ),
        None,
    )
    if changed is None:
        return Check(part, "leaves its arguments alone")
    says = "It changes the lists that it was given; whoever calls it goes on using them. Make new ones."
    return Check(
        part,
        "leaves its arguments alone",
        "failed",
        "arguments_changed",
        says,
        shown(changed[0]),
        "the same",
        shown(changed[1]),
    )


def _first_failure(part: str, calls: Any) -> Check | None:
    for given, call in calls:
        if "failed" in call:
            writes = "Read-only file system" in call["failed"]
            says = (
                "It tries to write a file; these functions compute, and nothing here can be written."
                if writes
                else "It raised an exception."
            )
            return Check(
                part,
                "can be called",
                "failed",
                "writes" if writes else "raised",
                says,
                shown(given),
                "",
                call["failed"],
            )
    return None
