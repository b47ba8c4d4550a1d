"""One contestant of `real.py` in a process of its own: `python real_peers.py '{"who": …}'`.

It says `{"ready": …}` on its standard output when it has loaded the model. For each line on its standard input, a number
of tokens, it then takes one turn (samples, or a whole step) and reports its result; TRL's number is fixed. Imports nothing of this repository but for its own engine, so that the others run in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Turn = Callable[[int], dict[str, Any]]
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, LEARNING_RATE = 32, 2e-4
MICRO_BATCH = 16
"""Completions that TRL takes in one pass: all 64 at once take more memory than a laptop has."""


def reward_of(tokens: list[int]) -> float:
    """Some reward that differs within a group and costs nothing."""
    return sum(token % 2 for token in tokens) / max(1, len(tokens))


def our_service(job: dict[str, Any]) -> Any:
    from code_rl.engine.local import EmbeddedService

    return EmbeddedService(device="cpu", dtype=job["dtype"], threads=job["threads"])


def our_draws(job: dict[str, Any], client: Any, new_tokens: int) -> list[Any]:
    from tinker import types

    params = types.SamplingParams(max_tokens=new_tokens, seed=1, stop=[])
    futures = [client.sample(types.ModelInput.from_ints(prompt), job["group"], params) for prompt in job["prompts"]]
    return [future.result().sequences for future in futures]


def ours(job: dict[str, Any]) -> Turn:
    client = our_service(job).create_sampling_client(base_model=job["model"]).result()
    return lambda n: {"tokens": sum(len(s.tokens) for sequences in our_draws(job, client, n) for s in sequences)}


def our_step(job: dict[str, Any]) -> Turn:
    from tinker import types

    from code_rl.training.algorithm.advantages import compute_advantages
    from code_rl.training.algorithm.datums import make_datum

    service = our_service(job)
    trainer = service.create_lora_training_client(job["model"], rank=RANK, seed=0, train_unembed=False).result()
    adam = types.AdamParams(learning_rate=LEARNING_RATE)

    def step(new_tokens: int) -> dict[str, Any]:
        data = []
        drawn = our_draws(job, trainer.save_weights_and_get_sampling_client().result(), new_tokens)
        for prompt, sequences in zip(job["prompts"], drawn, strict=True):
            advantages = compute_advantages([reward_of(s.tokens) for s in sequences])
            for sequence, advantage in zip(sequences, advantages, strict=True):
                data.append(
                    make_datum(prompt + sequence.tokens, sequence.logprobs or [], len(prompt), advantage or 0.0)
                )
        for done in (trainer.forward_backward(data, "importance_sampling"), trainer.optim_step(adam)):
            done.result()
        return {"tokens": len(data) * new_tokens}

    return step


def transformers_model(job: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]))
    model.eval()
    model.generation_config.eos_token_id = None
    return model


def generate(job: dict[str, Any]) -> Turn:
    import torch

    model = transformers_model(job)
    width = max(map(len, job["prompts"]))
    ids = torch.zeros(len(job["prompts"]), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(job["prompts"]):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    how = {"do_sample": True, "top_k": 0, "num_return_sequences": job["group"]}

    def turn(new_tokens: int) -> dict[str, Any]:
        out = model.generate(ids, attention_mask=mask, pad_token_id=0, max_new_tokens=new_tokens, **how)
        return {"tokens": len(out) * (out.shape[1] - width)}

    return turn


def vllm(job: dict[str, Any]) -> Turn:
    from vllm import LLM, SamplingParams

    llm = LLM(
        job["model"],
        dtype=job["dtype"],
        enforce_eager=job["who"] == "vllm_eager",
        generation_config="vllm",
        max_model_len=512,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        block_size=32,  # a prompt of two hundred tokens is then shared by its completions; not with the default of 128
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]

    def turn(new_tokens: int) -> dict[str, Any]:
        how = SamplingParams(n=job["group"], temperature=1.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        llm.reset_prefix_cache()  # in training the weights have changed since
        found = llm.generate(prompts, how, use_tqdm=False)
        return {"tokens": sum(len(each.token_ids) for request in found for each in request.outputs)}

    return turn


def trl_step(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """TRL's trainer calls us, and not we it: a turn ends with its step."""
    import tempfile

    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    total = len(job["prompts"]) * job["group"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    texts = [tokenizer.decode(prompt) for prompt in job["prompts"]]
    assert [tokenizer(text)["input_ids"] for text in texts] == job["prompts"]
    drawn: list[int] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        drawn.extend(map(len, completion_ids))
        return [reward_of(ids) for ids in completion_ids]

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            say({"ready": True})
            sys.stdin.readline()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002 - the trainer's names
            say({"tokens": sum(drawn)})
            drawn.clear()
            control.should_training_stop = not sys.stdin.readline()
            return control

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=min(MICRO_BATCH, total),
            gradient_accumulation_steps=max(1, total // MICRO_BATCH),
            num_generations=job["group"],
            max_completion_length=job["new_tokens"],
            max_steps=1000,
            learning_rate=LEARNING_RATE,
            beta=0.0,
            loss_type="grpo",
            scale_rewards="none",
            temperature=1.0,
            top_k=0,
            max_grad_norm=0.0,
            gradient_checkpointing=False,
            bf16=job["dtype"] == "bfloat16",
            use_cpu=True,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            dataloader_pin_memory=False,
            generation_kwargs={"eos_token_id": None, "min_new_tokens": job["new_tokens"]},
        )
        GRPOTrainer(
            model=transformers_model(job),
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": texts * 4}),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=RANK, lora_alpha=RANK, target_modules=PROJECTIONS, task_type="CAUSAL_LM"),
            callbacks=[Turns()],
        ).train()


def main() -> None:
    job = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not for whoever reads the turns

    def say(words: dict[str, Any]) -> None:
        out.write(json.dumps(words) + "\n")

    if job["who"] == "trl_step":
        trl_step(job, say)
        return
    turn = {"ours": ours, "our_step": our_step, "generate": generate, "vllm_compiled": vllm, "vllm_eager": vllm}[
        job["who"]
    ](job)
    say({"ready": True})
    while line := sys.stdin.readline():
        say(turn(int(line)))


if __name__ == "__main__":
    main()
