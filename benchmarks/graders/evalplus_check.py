"""evalplus's untrusted_check. In a folder of your choice:

python3.11 -m venv foreign/ep && foreign/ep/bin/pip install evalplus==0.3.1
code-rl audit grader=CLONE/benchmarks/graders/evalplus_check.py:grade takes=call python=foreign/ep/bin/python
"""

from evalplus.eval import PASS, untrusted_check


def grade(code, problem):
    tests = problem["input_output"]
    times = [problem["time_limit_s"] / 4] * len(tests["inputs"])  # its limit is four times the reference's time
    status, _ = untrusted_check(
        "humaneval", code, tests["inputs"], problem["fn_name"], tests["outputs"], 0, times, fast_check=True
    )
    return float(status == PASS)
