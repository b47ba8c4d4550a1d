"""What a back end can do, as data: asked or probed when a run starts, printed, and enforced before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from code_rl.errors import ConfigError


class BackendKind(StrEnum):
    """Where the model lives."""

    EMBEDDED = "embedded"
    TINKER = "tinker"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the back end of a run can do. None means that only a probe can tell (`connect` does that where it matters).

    `losses` maps each loss to the settings that it takes (None: unknown, the run's own loss is probed). `scaled_logprobs` is
    True when the log-probabilities of sampled tokens belong to the tempered distribution, False when they are the model's own
    at temperature 1. `safe_repeats` means that a request whose answer was lost can be sent again without being carried out
    twice. `checkpoint_ttl` means that checkpoints can be given an expiry.
    """

    kind: BackendKind
    losses: Mapping[str, frozenset[str]] | None
    scaled_logprobs: bool | None = None
    safe_repeats: bool = True
    checkpoint_ttl: bool = False

    def require_loss(self, name: str, settings: Mapping[str, float] | None = None) -> None:
        """Raise ConfigError, by name, for a loss or one of its settings that this back end is known not to have."""
        if self.losses is None:
            return
        if name not in self.losses:
            known = ", ".join(sorted(self.losses))
            raise ConfigError(f"loss {name!r} is not available on backend={self.kind}; it has {known}")
        for key in settings or {}:
            if key not in self.losses[name]:
                known = ", ".join(sorted(self.losses[name])) or "none"
                raise ConfigError(f"{key} is no setting of loss {name!r} on backend={self.kind}; its settings: {known}")

    def require_temperature(self, temperature: float, *, custom_loss: bool = False) -> None:
        """Raise ConfigError for a temperature at which samples and training would mean different policies."""
        if custom_loss and self.kind != BackendKind.EMBEDDED and self.pass_temperature(temperature) != 1:
            raise ConfigError(
                f"temperature={temperature:g} cannot be trained with by a loss of your own on backend={self.kind}: the SDK's "
                "forward_backward_custom has none; use temperature=1, a loss of the server's, or backend=embedded"
            )
        if not _plain(temperature) and self.scaled_logprobs and not self.trains_at_temperature:
            raise ConfigError(
                f"temperature={temperature:g} cannot be trained with on this back end: the log-probabilities that it samples "
                "with are scaled by the temperature, and those that it trains with are not; use temperature=1"
            )

    @property
    def trains_at_temperature(self) -> bool:
        """True when passes take a temperature, so that the policy that is trained is the one that was drawn from."""
        return self.losses is not None and all("temperature" in keys for keys in self.losses.values())

    def pass_temperature(self, temperature: float) -> float:
        """At what temperature passes belong to samples drawn at `temperature`."""
        return temperature if not _plain(temperature) and self.scaled_logprobs and self.trains_at_temperature else 1.0

    def pass_settings(self, temperature: float) -> dict[str, float]:
        """What `loss_fn_config` must hold beside the loss's own settings for samples drawn at `temperature`."""
        scale = self.pass_temperature(temperature)
        return {} if scale == 1 else {"temperature": scale}

    def temperature_notice(self, temperature: float) -> str | None:
        """One line for a run whose gradient is biased by its temperature."""
        if _plain(temperature) or self.scaled_logprobs is not False:
            return None
        return (
            f"temperature={temperature:g}: this back end reports and trains log-probabilities at temperature 1 whatever completions "
            "are drawn at; nothing corrects the difference, and gradients are biased by it"
        )

    def describe(self) -> str:
        """One line for the head of a run."""
        losses = "probed" if self.losses is None else ", ".join(sorted(self.losses))
        scaled = {None: "not known", True: "scaled by temperature", False: "the policy's own"}[self.scaled_logprobs]
        facts = [f"losses {losses}", f"sampled logprobs {scaled}"]
        if self.trains_at_temperature:
            facts.append("trained at the same temperature")
        if not self.safe_repeats:
            facts.append("a request whose answer is lost may be carried out twice")
        return "; ".join(facts)


def _plain(temperature: float) -> bool:
    """True where scaled and unscaled log-probabilities are the same: greedy ones are reported at temperature 1."""
    return temperature in (0.0, 1.0)
