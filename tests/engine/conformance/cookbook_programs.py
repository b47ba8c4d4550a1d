"""Programs of tinker-cookbook 0.6.1, unmodified, run in an environment that has the cookbook and not this project.

    python cookbook_programs.py TOKENIZER_FOLDER MODULE WORDS…     # as: python -m MODULE WORDS…
    python cookbook_programs.py TOKENIZER_FOLDER quickstart

TINKER_BASE_URL names the server, whose `models=` file maps MODEL and ANSWERER to the built-in model. What stands in for the hub, which these
programs want and which is not at hand: a tokenizer under MODEL's name (through the cookbook's own register_tokenizer) and some
rows of each data set. VARIED=1 gives `rl_loop` a reward that varies.
"""

import json
import os
import runpy
import sys
from typing import Any

MODEL = "Qwen/Qwen3-8B"
ANSWERER = "Qwen/Qwen3.5-9B"  # whom one recipe names in its source
ROWS = 1100
CODE = "```python\ndef solve(xs):\n    return sum(xs[:2])\n```"


def row(kind, n):
    """Row n of a data set, in the columns that the recipes read."""
    question = f"Return the sum of the first {n % 32 + 2} numbers of the list."
    tests = [{"type": "stdin_stdout", "input": f"{n} 1\n", "output": f"{n + 1}\n", "testtype": "stdin_stdout"}] * 2
    talk = f"\n\nHuman: {question}\n\nAssistant: "
    return {
        "no_robots": lambda: {"messages": [said("user", question), said("assistant", CODE)]},
        "tulu-3-sft-mixture": lambda: {"messages": [said("user", question), said("assistant", CODE)]},
        "gsm8k": lambda: {"question": question, "answer": f"#### {n}"},
        "MATH-500": lambda: {"problem": f"Held out: {question}", "solution": f"\\boxed{{{n}}}", "answer": str(n)},
        "hendrycks_math": lambda: {"problem": f"{n}: {question}", "solution": f"\\boxed{{{n}}}"},
        "DeepMath-103K": lambda: {"question": question, "final_answer": str(n)},
        "DeepCoder-Preview-Dataset": lambda: {"problem": question, "tests": json.dumps(tests), "metadata": "{}"},
        "hh-rlhf": lambda: {"chosen": talk + CODE, "rejected": talk + "no"},
        "OpenThoughts3-1.2M": lambda: {
            "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": CODE}]
        },
        "SciKnowEval": lambda: {
            "domain": "Chemistry",
            "details": {"level": "L3"},
            "type": "mcq-4-choices",
            "question": question,
            "choices": {"label": ["A", "B"], "text": [str(n), str(n + 1)]},
            "answerKey": "A",
        },
        "wikitext": lambda: {"text": f"{question} After that, the list and the sum are one.\n"},
    }[kind]()


def said(role, content):
    return {"role": role, "content": content}


def load_dataset(path, *_, split=None, streaming=False, **__):
    import datasets

    table = datasets.Dataset.from_list([row(path.rpartition("/")[2], n) for n in range(ROWS)])
    if streaming:
        return table.to_iterable_dataset()
    return table if split else datasets.DatasetDict({"train": table, "test": table})


def stand_in_for_the_hub(tokenizer_folder):
    import datasets
    from tinker_cookbook.tokenizer_utils import register_tokenizer
    from transformers import AutoTokenizer

    for name in (MODEL, ANSWERER):
        register_tokenizer(name, lambda: AutoTokenizer.from_pretrained(tokenizer_folder))
    datasets.load_dataset = load_dataset
    datasets.get_dataset_config_names = lambda _: ["algebra"]


def vary_the_reward():
    """The built-in model boxes no number: with the recipe's own reward every advantage is zero, and it takes no step."""
    from tinker_cookbook.recipes.math_rl import math_env, math_grading

    def graded(given, _):
        return len(given) % 2 == 1

    math_grading.extract_boxed = math_env.extract_boxed = lambda text: text
    math_grading.grade_answer = math_env.grade_answer = graded


def quickstart():
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
        inputs: dict[str, Any] = {"weights": weights[1:], "target_tokens": tokens[1:]}
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)

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
    folder, program, *words = sys.argv[1:]
    if program == "quickstart":
        quickstart()
    else:
        stand_in_for_the_hub(folder)
        if os.environ.get("VARIED"):
            vary_the_reward()
        sys.argv = [program, *words]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    print("completed", program)
