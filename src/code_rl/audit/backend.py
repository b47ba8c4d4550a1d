"""A server of the Tinker protocol, asked by the SDK: numbers against what must hold of any model, order, repeats and losses, refusals.

No weights are known here. What is compared are two ways to one number, and a step with the same step taken otherwise: how far the two end from each
other, as a share of how far the step went.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from code_rl.audit.checklist import Check, Checklist, found
from code_rl.audit.proxy import Fault, FaultyProxy
from code_rl.audit.server import PROBE, PROMPT, RATE, A, Array, Audited, B, datum, logprobs_of, text_of
from code_rl.places import Place

MEAN_GAP = 0.02
"""In nats: engines that sample and that train differ in the last bits, in low precision by as much as this on average."""
SHARE = 0.1
_TOO_LONG = 1 << 24
_CLIENTS = 4
"""First digit of a status that says whose mistake it was."""
_FULL, _ROOM_S = "Maximum number of LoRA adapters", 5.0
"""What SkyRL says, with a status of 400, where others say 429."""
_ERRORS, _TELLING = 4.0, 8.0
"""Temperatures: standard errors that the means must lie apart, and the spread times the root of the count below which they cannot be told."""


class _MissingError(Exception):
    """The server does not have what an optional check needs."""


class _WrongError(Exception):
    """A check that failed: the mistake, what was expected and what came."""


def _near(got: Array, wanted: Array, mistake: str, limit: float = MEAN_GAP) -> None:
    if got.shape != wanted.shape or not np.abs(got - wanted).mean() <= limit:
        raise _WrongError(mistake, wanted.tolist(), got.tolist())


def _same_step(got: Array, wanted: Array, before: Array, mistake: str) -> None:
    """Whether two steps from `before` end at one place."""
    apart, step = float(np.linalg.norm(got - wanted)), float(np.linalg.norm(wanted - before))
    share = apart / max(step, 1e-9)
    if not share <= SHARE:
        raise _WrongError(mistake, "the same weights", f"they differ by {share:.0%} of the step")


def sampled_logprobs(server: Audited) -> None:
    """What is sampled, scored by training's engine."""
    trainer = server.trainer()
    server.train(trainer, [datum(A)])
    for sequence in server.drawn(server.sampler(trainer)):
        again = server.logprobs(trainer, [*PROMPT, *sequence.tokens])[0][len(PROMPT) - 1 :]
        got = np.asarray(sequence.logprobs, dtype=np.float64)
        moved = (got[1:], again[:-1]), (got[:-1], again[1:])
        shifted = len(got) > 1 and any(np.abs(a - b).mean() <= MEAN_GAP for a, b in moved)
        _near(got, again, "logprobs_shifted" if shifted else "sampled_logprobs")


def scored_logprobs(server: Audited) -> None:
    """Two engines, one model. A list without a place for the first token is named as that: its values may be right."""
    sampler = server.sampler()
    _near(server.scored(sampler, PROBE), server.logprobs(server.trainer(), PROBE)[0], "computed_logprobs")
    count = len(server.wait(sampler.compute_logprobs(text_of(PROBE))))
    if count != len(PROBE):
        raise _WrongError("first_token_left_out", f"{len(PROBE)} entries for {len(PROBE)} tokens", count)


def loss_values(server: Audited) -> None:
    """`loss:sum` against log-probabilities that the server gave before."""
    trainer, rng = server.trainer(), np.random.default_rng(0)
    now = server.logprobs(trainer, A)[0]
    old, advantages = now + rng.normal(0, 0.4, len(now)), rng.normal(0, 1, len(now))
    ratio, data = np.exp(now - old), datum(A, logprobs=old, advantages=advantages)
    for name, given, losses in (
        ("cross_entropy", datum(A), -now),
        ("importance_sampling", data, -ratio * advantages),
        ("ppo", data, -np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)),
    ):
        got = server.wait(trainer.forward([given], name)).metrics.get("loss:sum")
        if got is None:
            raise _MissingError("no loss:sum among the metrics")
        wanted = float(losses.sum())
        if not abs(got - wanted) <= 0.01 * max(1.0, abs(wanted)):
            raise _WrongError(f"loss_{name}", wanted, got)


def step_moves(server: Audited) -> None:
    """A step on cross-entropy."""
    trainer = server.trainer()
    before = server.logprobs(trainer, A)[0].sum()
    server.train(trainer, [datum(A)])
    risen = float(server.logprobs(trainer, A)[0].sum() - before)
    if not risen >= 1e-4 * abs(before):
        still = abs(risen) < 1e-4 * abs(before)
        raise _WrongError("step_dropped" if still else "step_reversed", "likelier tokens", f"a change by {risen:.4g}")


def step_size(server: Audited) -> None:
    """With a large epsilon Adam is plain descent by rate / epsilon times the gradient: the loss falls by that times the norm squared."""
    norms = getattr(server.train(server.trainer(), [datum(A)]), "metrics", None) or {}
    norm = next((float(value) for name, value in norms.items() if name.startswith("grad_norm")), 0.0)
    if not norm > 0:
        raise _MissingError("optim_step reports no grad_norm")
    trainer, wanted, epsilon = server.trainer(), 0.5, 1e4 * norm
    before = server.logprobs(trainer, A)[0].sum()
    server.train(trainer, [datum(A)], learning_rate=wanted * epsilon / norm**2, eps=epsilon)
    risen = float(server.logprobs(trainer, A)[0].sum() - before)
    if not abs(risen - wanted) <= 0.2 * wanted:
        raise _WrongError("gradient", wanted, risen)


def fresh_sampler(server: Audited) -> None:
    """Samplers from before and after a step."""
    trainer = server.trainer()
    first = server.sampler(trainer)
    before = server.scored(first, A)
    server.train(trainer, [datum(A)])
    now, got = server.logprobs(trainer, A)[0], server.scored(server.sampler(trainer), A)
    stale = np.abs(got - before).mean() < SHARE * np.abs(now - before).mean()
    _near(got, now, "stale_sampler" if stale else "sampler_weights")
    _near(server.scored(first, A), before, "snapshot_moves", MEAN_GAP / 2)


def answers_in_order(server: Audited) -> None:
    """Three sequences of different lengths, in one request and in three."""
    trainer = server.trainer()
    alone = [server.logprobs(trainer, ids)[0] for ids in (A, B, PROBE)]
    together = server.logprobs(trainer, A, B, PROBE)
    requests = [trainer.forward([datum(ids)], "cross_entropy") for ids in (A, B, PROBE)]
    apart = [logprobs_of(server.wait(request))[0] for request in requests]
    for number, wanted in enumerate(alone):
        _near(together[number], wanted, "datums_out_of_order")
        _near(apart[number], wanted, "answers_swapped")


def steps_in_order(server: Audited) -> None:
    """Two passes and two steps."""
    from tinker import types

    waiting, piped = server.trainer(), server.trainer()
    before, futures = server.logprobs(waiting, PROBE)[0], []
    for ids in (A, B):
        server.train(waiting, [datum(ids)])
        futures.append(piped.forward_backward([datum(ids)], "cross_entropy"))
        futures.append(piped.optim_step(types.AdamParams(learning_rate=RATE)))
    for future in futures:
        server.wait(future)
    _same_step(server.logprobs(piped, PROBE)[0], server.logprobs(waiting, PROBE)[0], before, "pipelined")


def accumulation(server: Audited) -> None:
    """Two passes and one step."""
    before = server.logprobs(server.trainer(), PROBE)[0]
    _same_step(server.after([datum(A)], [datum(B)]), server.after([datum(A), datum(B)]), before, "accumulation")


def forward_is_pure(server: Audited) -> None:
    """A forward pass, then a step on something else."""
    trainer = server.trainer()
    before = server.logprobs(trainer, PROBE, A)[0]
    server.train(trainer, [datum(B)])
    _same_step(server.logprobs(trainer, PROBE)[0], server.after([datum(B)]), before, "forward_has_gradient")


def seeds(server: Audited) -> None:
    """Samples by seed."""
    sampler = server.sampler()
    first, again, other = ([list(s.tokens) for s in server.drawn(sampler, seed=seed)] for seed in (5, 5, 6))
    if first != again:
        raise _WrongError("seed_ignored", first, again)
    if first == other or first[0] == first[1] == first[2]:
        raise _WrongError("samples_alike", "different samples", other)


def temperatures(server: Audited) -> None:
    """Samples at a low and at a high temperature, by one seed: how likely the model finds their tokens."""
    sampler, trainer = server.sampler(), server.trainer()
    cold, hot = (_likelihoods(server, sampler, trainer, temperature) for temperature in (0.5, 2.0))
    count, spread = min(len(cold), len(hot)), float(np.concatenate([cold, hot]).std())
    if spread * count**0.5 < _TELLING:
        raise _MissingError("too few tokens were drawn, or the model finds all of them equally likely")
    error = float((cold.var() / len(cold) + hot.var() / len(hot)) ** 0.5)
    rise = float(cold.mean() - hot.mean())
    if not rise > _ERRORS * error:
        wanted = f"tokens at 0.5 likelier than at 2 by more than {_ERRORS * error:.2g} nats"
        raise _WrongError("temperature_ignored", wanted, f"{rise:+.2g} nats")


def _likelihoods(server: Audited, sampler: Any, trainer: Any, temperature: float) -> Array:
    """At temperature 1, of some hundred tokens drawn at this one."""
    drawn = server.drawn(sampler, number=16, max_tokens=16, temperature=temperature)
    scored = server.logprobs(trainer, *([*PROMPT, *each.tokens] for each in drawn if each.tokens))
    return np.concatenate([each[len(PROMPT) - 1 :] for each in scored])


def top_p(server: Audited) -> None:
    """First tokens, drawn from all and from the likeliest alone."""
    sampler = server.sampler()
    every, likeliest = (
        sorted({each.tokens[0] for each in server.drawn(sampler, number=16, max_tokens=1, top_p=share)})
        for share in (1.0, 1e-3)
    )
    if len(every) == 1:
        raise _MissingError("one token is drawn whatever top_p is")
    if len(likeliest) > 1:
        raise _WrongError("top_p_ignored", "one token, the likeliest", likeliest)


def stops(server: Audited) -> None:
    """A greedy sample, and the same with one of its tokens as a stop: it ends there, with that token or before it."""
    sampler = server.sampler()
    free = list(server.drawn(sampler, number=1, temperature=0.0)[0].tokens)
    at = free.index(free[len(free) // 2])
    ended = server.drawn(sampler, number=1, temperature=0.0, stop=[free[at]])[0]
    got = list(ended.tokens), ended.stop_reason
    if got not in ((free[:at], "stop"), (free[: at + 1], "stop")):
        raise _WrongError("stop_ignored", (free[: at + 1], "stop"), got)


def weight_decay(server: Audited) -> None:
    """A step that decays every weight to nothing: the adapter is a fresh one."""
    trainer = server.trainer()
    fresh = server.logprobs(trainer, PROBE)[0]
    server.train(trainer, [datum(A)])
    before = server.logprobs(trainer, PROBE)[0]
    server.train(trainer, [datum(A)], learning_rate=1e-3, weight_decay=1e3)
    _same_step(server.logprobs(trainer, PROBE)[0], fresh, before, "weight_decay_ignored")


def checkpoints(server: Audited) -> None:
    """Save, load, and one step more."""
    trainer = server.trainer()
    server.train(trainer, [datum(A)])
    before, copy = server.logprobs(trainer, PROBE)[0], server.restored(server.saved(trainer))
    _near(server.logprobs(copy, PROBE)[0], before, "checkpoint")
    for each in (trainer, copy):
        server.train(each, [datum(B)])
    _same_step(server.logprobs(copy, PROBE)[0], server.logprobs(trainer, PROBE)[0], before, "optimizer_state")


def spoiled(path: str, faults: Sequence[Fault], mistake: str) -> Callable[[Audited], None]:
    """A step of two passes through a proxy that spoils some requests; it must end where the same ends without."""

    def check(server: Audited) -> None:
        before, now = server.logprobs(server.trainer(), PROBE, A)
        # The second pass takes back more of A than the first gave: twice the first, or none of it, is another direction, whatever Adam makes of sizes.
        passes = [datum(A), datum(B)], [datum(A, logprobs=now, advantages=np.full(len(now), -1.5))]
        wanted = server.after(*passes)
        with FaultyProxy(server.place.url, {path: faults}) as proxy:
            with Audited(server.place, server.model, server.timeout_s, proxy.url) as spoilt:
                got = spoilt.after(*passes)
            if not proxy.injected:
                raise _MissingError(f"the SDK sent no {path}")
        _same_step(got, wanted, before, mistake)

    return check


def refused(mistake: str, ask: Callable[[Audited], Any]) -> Callable[[Audited], None]:
    """A request that cannot be honoured: an answer of the 4xx kind (or a failure of the category user), and the server goes on."""

    def check(server: Audited) -> None:
        import tinker

        got = "it was accepted"
        try:
            ask(server)
        except TimeoutError:
            got = f"no answer within {server.timeout_s:g} s; the SDK goes on asking after a 5xx"
        except (tinker.TinkerError, OSError) as error:
            status, category = getattr(error, "status_code", 0), getattr(error, "category", None)
            if _no_room(error):
                raise
            theirs = status // 100 == _CLIENTS or str(getattr(category, "value", category)).lower() == "user"
            got = "" if theirs else f"{status or category or type(error).__name__}: {error}"[:300]
        if got:
            raise _WrongError(mistake, "a status of 4xx", got)
        server.logprobs(server.trainer(), PROBE)

    return check


CHECKS: tuple[tuple[str, str, Callable[[Audited], None]], ...] = (
    ("numbers", "a fresh adapter scores as the base model", scored_logprobs),
    ("numbers", "losses are what their formulas give", loss_values),
    ("numbers", "a step makes its own tokens likelier", step_moves),
    ("numbers", "a step along the gradient changes the loss by its size", step_size),
    ("numbers", "weight decay takes its share of the weights", weight_decay),
    ("numbers", "sampled log-probabilities are those of a forward pass", sampled_logprobs),
    ("numbers", "gradients add up until the step", accumulation),
    ("numbers", "forward leaves no gradient", forward_is_pure),
    ("sampling", "a new sampling client has the new weights, an old one the old", fresh_sampler),
    ("sampling", "a seed fixes the samples", seeds),
    ("sampling", "the temperature decides how likely the tokens are", temperatures),
    ("sampling", "top_p leaves out what is unlikely", top_p),
    ("sampling", "a stop token ends the sample", stops),
    ("order", "each datum and each request gets its own answer", answers_in_order),
    ("order", "requests that are submitted at once run in their order", steps_in_order),
    ("repeats", "forward_backward that comes twice counts once", spoiled("/forward_backward", ["twice"], "pass_repeated")),
    ("repeats", "optim_step that comes twice counts once", spoiled("/optim_step", ["twice"], "step_repeated")),
    ("repeats", "a lost answer to forward_backward", spoiled("/forward_backward", ["lost"], "pass_lost")),
    ("repeats", "a lost answer to optim_step", spoiled("/optim_step", ["lost"], "step_lost")),
    ("repeats", "half of an answer with results", spoiled("/retrieve_future", [None, "cut"], "result_lost")),
    ("checkpoints", "a saved state comes back, optimizer included", checkpoints),
    ("refusals", "an unknown model", refused("unknown_model", lambda s: s.trainer("no/such-model"))),
    ("refusals", "an unknown loss", refused("unknown_loss", lambda s: s.wait(s.trainer().forward([datum(A)], "no_such_loss")))),
    ("refusals", "a token outside the vocabulary", refused("unknown_token", lambda s: s.logprobs(s.trainer(), [5, 10**7, 7]))),
    ("refusals", "more tokens than the context holds", refused("too_long", lambda s: s.drawn(s.sampler(), max_tokens=_TOO_LONG))),
    ("refusals", "a prompt without tokens", refused("empty_prompt", lambda s: s.drawn(s.sampler(), prompt=[]))),
    ("refusals", "a temperature below zero", refused("bad_temperature", lambda s: s.drawn(s.sampler(), temperature=-1.0))),
)  # fmt: skip
_SILENT = 2


def audit_backend(
    place: Place, model: str, timeout_s: float, say: Callable[[str], None], only: frozenset[str] = frozenset()
) -> Checklist:
    """Every check, or those of the parts `only`; ends early where a second one gets no answer."""
    logging.getLogger("tinker").setLevel(logging.CRITICAL)  # what fails stands on the card
    card, silent = Checklist("backend", place.url, say), 0
    for part, name, check in CHECKS:
        if only and part not in only:
            continue
        try:
            if silent == _SILENT:
                raise _MissingError("not tried: the server does not answer")
            _tried(check, place, model, timeout_s)
            result = Check(part, name)
        except _MissingError as error:
            result = found(part, name, "not_there", status="missing", words={"why": error})
        except _WrongError as error:
            result = found(part, name, error.args[0], "", *error.args[1:])
        except TimeoutError:
            silent += 1
            result = found(part, name, "no_answer", words={"seconds": timeout_s})
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of what it got
            full = _no_room(error)
            got = f"{type(error).__name__}: {error}"[:300]
            result = found(
                part, name, "no_room" if full else "error", "", "", got, status="missing" if full else "failed"
            )
        card.add([result])
    if all(check.status == "missing" for check in card.checks):
        card.add([found("server", "can be judged", "nothing_judged")])
    return card


def _no_room(error: Exception) -> bool:
    """Whether this is how a server says that it holds as many models as it can."""
    return getattr(error, "status_code", 0) == 429 or _FULL in str(error)


def _tried(check: Callable[[Audited], None], place: Place, model: str, timeout_s: float) -> None:
    """`check` in a session of its own; once more after a while, where the server has no room."""
    for last in (False, True):
        try:
            with Audited(place, model, timeout_s) as server:
                check(server)
            return
        except Exception as error:
            if last or not _no_room(error):
                raise
        time.sleep(min(_ROOM_S, timeout_s))
