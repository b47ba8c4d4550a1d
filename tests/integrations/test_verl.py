"""verl's own reward manager with our function, loaded as its configuration says. Needs the extra `verl`."""

from __future__ import annotations

import asyncio

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

import numpy as np  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.trainer.ppo.reward import load_reward_manager  # noqa: E402

from code_rl.engine.names import source_of  # noqa: E402
from code_rl.integrations.verl import to_row  # noqa: E402
from code_rl.util.errors import SandboxError  # noqa: E402

from .test_rows import RIGHT, SUM, WRONG  # noqa: E402

OURS = {"path": "pkg://code_rl.integrations.verl", "name": "compute_score"}


def scored(answer):
    tokenizer = AutoTokenizer.from_pretrained(source_of("tiny"))
    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": OURS,
                "reward_manager": {"source": "register", "name": "naive"},
            }
        }
    )
    ids = torch.tensor([tokenizer(answer, add_special_tokens=False)["input_ids"]])
    row = to_row(SUM)
    columns = {name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")}
    data = DataProto.from_dict(tensors={"responses": ids, "attention_mask": torch.ones_like(ids)}, non_tensors=columns)

    async def run():  # the manager keeps the loop that runs where it is made
        return await load_reward_manager(config, tokenizer).run_single(data)

    return asyncio.run(run())


@pytest.mark.parametrize(("answer", "score"), [(RIGHT, 1.0), (WRONG, 0.0)])
def test_the_manager_gives_our_score(answer, score):
    got = scored(answer)
    print(got)
    assert got["reward_score"] == score
    assert got["reward_extra_info"] == {"score": score, "acc": score}


@pytest.mark.usefixtures("broken")
def test_a_sandbox_that_is_down_stops_the_step():
    with pytest.raises(SandboxError):
        scored(RIGHT)
