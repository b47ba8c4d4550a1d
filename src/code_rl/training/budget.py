"""The budget of a run: prices, hard caps on tokens and cost, and the amount spent.

A batch begins only if its worst case (every completion at its limit) fits under the caps, together
with the worst cases of the batches in progress and of the next evaluation. So a cap is never
exceeded; the run stops at most about one worst case below it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.util.errors import ConfigError, DataError

BILLED = {
    "prefill": ("tokens/prefill", "tokens/eval_prefill", "canary/prefill"),
    "sample": ("tokens/completion", "tokens/eval", "canary/tokens"),
    "train": ("tokens/train",),
}
"""The metrics of a step that each price is for."""
UNNAMED = "in the currency of prices="


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by how they are billed. A prompt is counted once per completion, the most expensive
    way to bill it."""

    prefill: int = 0
    sample: int = 0
    train: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        """Return the sum by kind; neither operand changes."""
        return Tokens(
            self.prefill + other.prefill, self.sample + other.sample, self.train + other.train
        )

    @property
    def total(self) -> int:
        """The number of all tokens, which `max_tokens_total` caps."""
        return self.prefill + self.sample + self.train

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> Tokens:
        """Return the tokens of a logged step, with its evaluation and its canaries. A missing
        metric counts as 0."""
        return cls(*(sum(int(metrics.get(name, 0)) for name in names) for names in BILLED.values()))


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens."""

    prefill: float
    sample: float
    train: float
    currency: str = UNNAMED

    def cost(self, tokens: Tokens) -> float:
        """Return the cost of the tokens, in the currency of the prices, not rounded."""
        return (
            self.prefill * tokens.prefill + self.sample * tokens.sample + self.train * tokens.train
        ) / 1e6


@dataclass(slots=True)
class Budget:
    """The caps, the amount spent, and reservations (worst cases by name) for work in progress."""

    max_tokens_total: int | None = None
    max_cost: float | None = None
    prices: Prices | None = None
    spent: Tokens = field(default_factory=Tokens)
    reserved: dict[str, Tokens] = field(default_factory=dict)

    def refusal(self, wanted: Tokens) -> str | None:
        """Return why `wanted` more tokens, beside those spent and reserved, could exceed a cap, or
        None if they cannot; a cap may be reached exactly. Nothing is reserved. Without prices
        `max_cost` caps nothing."""
        whole = self.spent + wanted
        for tokens in self.reserved.values():
            whole += tokens
        if self.max_tokens_total is not None and whole.total > self.max_tokens_total:
            return (
                f"max_tokens_total={self.max_tokens_total}: {self.spent.total} tokens spent, worst "
                f"case of what is next {whole.total - self.spent.total}"
            )
        if (
            self.max_cost is not None
            and self.prices is not None
            and self.prices.cost(whole) > self.max_cost
        ):
            spent = self.prices.cost(self.spent)
            return (
                f"max_cost={self.max_cost:g}: {spent:.4g} spent, worst case of what is next "
                f"{self.prices.cost(whole) - spent:.4g}"
            )
        return None

    @property
    def capped(self) -> bool:
        """True if there is a cap on tokens or cost; only then are reservations made."""
        return self.max_tokens_total is not None or self.max_cost is not None

    def reserve(self, name: str, worst: Tokens) -> None:
        """Reserve the worst case of work that begins, under a name that `settle` gives later. It
        replaces a reservation of that name; no cap is checked (`refusal`)."""
        self.reserved[name] = worst

    def settle(self, name: str, used: Tokens) -> None:
        """Add the tokens used to those spent, and drop the reservation of that name, if there is
        one."""
        self.reserved.pop(name, None)
        self.spent += used


def read_prices(path: str) -> tuple[Prices, dict[str, float]]:
    """Return the `[price]` table (money per million tokens: prefill, sample, train) and the
    `[assume]` table of a forecast, empty without one.

    Raises ConfigError for a file that cannot be opened. Raises DataError if it is not TOML, has an
    unknown table, lacks a price or has an unknown one, or has a value that is no finite number of 0
    or above.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"prices={path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"prices={path} is not TOML: {error}") from error
    unknown = sorted(set(table) - {"price", "assume"})
    if unknown:
        raise DataError(
            f"prices={path} has an unknown table [{unknown[0]}]; it may have [price] and [assume]"
        )
    price = table.get("price", {})
    currency = price.pop("currency", UNNAMED) if isinstance(price, dict) else ""
    if not isinstance(currency, str):
        raise DataError(f"prices={path}: price.currency={currency!r} must be a text, as 'USD'")
    prices = _numbers(path, "price", price)
    if prices.keys() != BILLED.keys():
        raise DataError(
            f"prices={path}: [price] needs {', '.join(BILLED)}, money per million tokens, and "
            "may name its currency; nothing else"
        )
    return Prices(**prices, currency=currency), _numbers(path, "assume", table.get("assume", {}))


def _numbers(path: str, name: str, table: Any) -> dict[str, float]:
    """Return the finite numbers, 0 or above, of the table `name` in the file `path`. Raises
    DataError that names the first other value."""
    if not isinstance(table, dict):
        raise DataError(f"prices={path}: [{name}] is not a table")
    for key, value in table.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < float("inf")
        ):
            raise DataError(f"prices={path}: {name}.{key}={value!r} must be a number, 0 or above")
    return {key: float(value) for key, value in table.items()}
