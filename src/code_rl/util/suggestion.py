"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OF_A_RUN = ("log_path", "checkpoint", "run")
"""Names of a run's setting in different verbs, which users may confuse."""

OF_OTHERS = {
    "log_dir": "log_path",
    "output_dir": "log_path",
    "num_steps": "max_steps",
    "num_train_steps": "max_steps",
    "wandb_project": "log_to",
    "wandb_name": "log_to",
    "report_to": "log_to",
    "max_new_tokens": "max_tokens",
    "max_completion_length": "max_tokens",
    "num_generations": "group_size",
    "per_device_train_batch_size": "batch_size",
    "beta": "kl_coef",
    "model": "model_name",
    "train_dataset": "dataset",
}
"""Setting names of other tools, and their equivalents here."""
MEANT = {
    "log_to": "log_to=wandb (the project comes from WANDB_PROJECT, the name from log_path)",
    "group_size": "groups_per_batch=PROMPTS group_size=COMPLETIONS_PER_PROMPT",
}
"""How to give some of these settings."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?`, or an empty text, to append to a message. The suggestion is
    another verb's name for a run's setting, a name with these initials (`lr`), or the most similar
    name of `known`. For another tool's name it is `; here it is x=`."""
    known = list(known)
    meant = [each for each in OF_A_RUN if name in OF_A_RUN and each in known]
    meant += [
        each
        for each in known
        if "_" in each and name == "".join(word[:1] for word in each.split("_"))
    ]
    here = OF_OTHERS.get(name)
    if here in known and not meant:
        return f"; here it is {MEANT.get(here, f'{here}=')}"
    close = meant or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""
