"""Where does the model live? `connect` returns the same client interface, Tinker's, for every back
end.

`local/` is the engine in this process, `remote` a service, `vllm` a sampler, and `serve/` the verb.
`losses` are computed here or sent by name; `checkpoints` are the saved states of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.engine.backends import Backend, connect, preflight
    from code_rl.engine.places import (
        BUILT_IN,
        BackendKind,
        TrainingOptions,
        kind_of,
        place_of,
        resolve_backend,
    )
    from code_rl.engine.probes import Survey
    from code_rl.engine.remote import logprobs_of, ready
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
