"""The /verify of NeMo Gym's code_gen, in its process: its extraction, its check_correctness, all results true. In a folder of your choice:

python3.12 -m venv foreign/nemo && foreign/nemo/bin/pip install nemo-gym==0.4.0
code-rl audit grader=CLONE/benchmarks/graders/nemo_gym_code_gen.py:grade python=foreign/nemo/bin/python
"""

import importlib.util
import json
import pathlib
import sys
from typing import Any

spec: Any = importlib.util.find_spec("resources_servers")
folder = spec.submodule_search_locations[0]
sys.path.insert(0, str(pathlib.Path(folder) / "code_gen"))

from lcb_integration.compute_code_generation_metrics import check_correctness
from lcb_integration.extraction_utils import LMStyle, extract_code


def grade(problem: dict[str, Any]) -> float:
    code = extract_code(problem["completion"], LMStyle.OpenAIChat)
    sample = {"input_output": json.dumps({"fn_name": None} | problem["lcb_input_output"])}
    results, _ = check_correctness(sample, code, 10, False)  # unit_test_timeout_secs of its configuration
    return float(all(result == True for result in results))  # noqa: E712 - as there
