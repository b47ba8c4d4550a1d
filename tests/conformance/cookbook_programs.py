"""Programs of tinker-cookbook 0.5.8, unmodified, run in an environment that has the cookbook and not this project.

    python cookbook_programs.py (sl_loop|rl_loop|rl_train|quickstart) LOG_FOLDER TOKENIZER_FOLDER

TINKER_BASE_URL names the server, whose `models=` file maps MODEL to the built-in model. What stands in for the hub, which these
programs want and which is not at hand: a tokenizer under MODEL's name (through the cookbook's own register_tokenizer) and the
recipes' data sets, a few rows each.
"""

import asyncio
import sys

MODEL = "Qwen/Qwen3-8B"


def rows(kind):
    import datasets

    questions = [f"Return the sum of the first {n} numbers of the list." for n in range(2, 34)]
    if kind == "HuggingFaceH4/no_robots":
        answer = "```python\ndef solve(xs):\n    return sum(xs[:2])\n```"
        table = [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": answer}]} for q in questions
        ]
    else:
        table = [{"question": q, "answer": f"#### {n}"} for n, q in enumerate(questions)]
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(table)})


def stand_in_for_the_hub(tokenizer_folder):
    import datasets
    from tinker_cookbook.tokenizer_utils import register_tokenizer
    from transformers import AutoTokenizer

    register_tokenizer(MODEL, lambda: AutoTokenizer.from_pretrained(tokenizer_folder))
    datasets.load_dataset = lambda name, *_: rows(name)


def sl_loop(log):
    from tinker_cookbook.recipes import sl_loop as recipe

    small = {"batch_size": 4, "max_steps": 5, "save_every": 2, "learning_rate": 2e-3, "max_length": 256}
    recipe.main(recipe.Config(log_path=log, model_name=MODEL, **small))


def rl_loop(log):
    from tinker_cookbook.recipes import rl_loop as recipe

    # The built-in model boxes no number: with the recipe's own reward every advantage is zero, and no step is taken.
    recipe.get_reward = lambda response, answer: float(len(response) % 2)
    small = {"batch_size": 4, "group_size": 4, "max_steps": 2, "save_every": 1, "max_tokens": 32}
    recipe.main(recipe.Config(log_path=log, model_name=MODEL, **small))


def rl_train(log):
    """The cookbook's trainer, on an environment of ours: the answer counts when it has a fenced block."""
    import chz
    from tinker_cookbook import renderers
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    class Fenced(ProblemEnv):
        def __init__(self, renderer, question):
            super().__init__(renderer)
            self.question = question

        def get_question(self):
            return self.question

        def check_answer(self, sample_str):
            return sample_str.count("x") % 2 == 0

        def check_format(self, sample_str):
            return "```" in sample_str

        def get_reference_answer(self):
            return ""

    class Questions(RLDataset):
        def __init__(self, renderer):
            self.renderer = renderer

        def get_batch(self, index):
            texts = [f"Write a function that adds {index + i} to x." for i in range(4)]
            return [ProblemGroupBuilder(env_thunk=lambda t=t: Fenced(self.renderer, t), num_envs=8) for t in texts]

        def __len__(self):
            return 3

    @chz.chz
    class Builder(RLDatasetBuilder):
        async def __call__(self):
            return Questions(renderers.get_renderer("qwen3", get_tokenizer(MODEL))), None

    config = train.Config(
        learning_rate=1e-3,
        dataset_builder=Builder(),
        model_name=MODEL,
        recipe_name="ours",
        renderer_name="qwen3",
        max_tokens=48,
        log_path=log,
        eval_every=0,
        save_every=2,
        lora_rank=8,
    )
    asyncio.run(train.main(config))


def quickstart(log):
    """The flow of the SDK's own quickstart: a model, cross-entropy on a few examples, then samples."""
    import numpy as np
    import tinker
    from tinker import types

    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=16).result()
    tokenizer = training.get_tokenizer()

    def example(given, wanted):
        prompt, completion = tokenizer.encode(given), tokenizer.encode(wanted)
        tokens, weights = prompt + completion, [0] * len(prompt) + [1] * len(completion)
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"weights": weights[1:], "target_tokens": tokens[1:]},
        )

    pairs = [("x: banana split\ny:", " anana-bay plit-say"), ("x: quantum physics\ny:", " uantum-qay ysics-phay")]
    data = [example(*pair) for pair in pairs]
    losses = []
    for _ in range(12):
        passed = training.forward_backward(data, "cross_entropy")
        stepped = training.optim_step(types.AdamParams(learning_rate=2e-3))
        output, _ = passed.result(), stepped.result()
        logprobs = np.concatenate([o["logprobs"].tolist() for o in output.loss_fn_outputs])
        weights = np.concatenate([d.loss_fn_inputs["weights"].tolist() for d in data])
        losses.append(-np.dot(logprobs, weights) / weights.sum())
    assert losses[-1] < losses[0] / 2, losses
    sampler = training.save_weights_and_get_sampling_client().result()
    prompt = types.ModelInput.from_ints(tokenizer.encode("x: banana split\ny:"))
    params = types.SamplingParams(max_tokens=20, temperature=0.0, stop=["\n"])
    texts = [
        tokenizer.decode(s.tokens)
        for s in sampler.sample(prompt=prompt, sampling_params=params, num_samples=4).result().sequences
    ]
    print(f"loss per token {losses[0]:.3f} -> {losses[-1]:.3f}; sampled {texts[0]!r}")


if __name__ == "__main__":
    program, log_folder, tokenizer = sys.argv[1:]
    if program != "quickstart":
        stand_in_for_the_hub(tokenizer)
    globals()[program](log_folder)
    print("completed", program)
