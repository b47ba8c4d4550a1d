"""Runs in an environment with evalplus, not in ours: the package's own verdicts on samples, task by task.

    python evalplus_verdicts.py DATASET SAMPLES.jsonl OUT.jsonl TIME_LIMIT_S

The tests, the ground truth and the checks are evalplus's functions. Its command line does the same for all tasks at once, and holds the ground
truth of all of them (0.8 GB for MBPP+) in every process that it forks.
"""

import contextlib
import io
import json
import sys

from evalplus.data import get_human_eval_plus, get_mbpp_plus
from evalplus.eval import PASS
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.evaluate import check_correctness, get_groundtruth


def main(dataset, samples, out, time_limit_s):
    tasks = get_mbpp_plus() if dataset == "mbpp" else get_human_eval_plus()
    not_none = MBPP_OUTPUT_NOT_NONE_TASKS if dataset == "mbpp" else []
    by_task: dict[str, list[str]] = {}
    with open(samples) as lines:
        for line in lines:
            row = json.loads(line)
            by_task.setdefault(row["task_id"], []).append(row["solution"])
    with open(out, "a") as file:
        for task_id, programs in by_task.items():
            with contextlib.redirect_stdout(io.StringIO()):
                truth = get_groundtruth({task_id: tasks[task_id]}, task_id.replace("/", "-"), not_none)[task_id]
            for number, program in enumerate(programs):
                found = check_correctness(
                    dataset, number, tasks[task_id], program, truth, fast_check=True, min_time_limit=float(time_limit_s)
                )
                right = found["base"][0] == found["plus"][0] == PASS
                file.write(json.dumps({"task_id": task_id, "number": number, "right": right}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
