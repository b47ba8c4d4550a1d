"""Submissions per second of the embedded sandbox, beside other ways to run the same programs, and beside the bare limit.

    python benchmarks/sandbox.py [tests=1,20] [seconds=5] [rounds=3] [concurrency=4] [isolation=full] [crowd=64]
        [fusion_url=http://localhost:8080/run_code] [harness=.../tinker_cookbook/recipes/code_rl/lcb_utils.py] [ray=ray]

Every way runs the same program on the same inputs and checks every output. The ways take turns, `rounds` times, so that a busy
machine touches them alike; medians are shown. Processor time, of this process and all below it, depends less on what else runs than rates do. `ray` is an `executor=` that names a Ray cluster. The bare limit is a loop without any work of a sandbox: for each submission one process cloned
into new user, PID and mount namespaces from a bare interpreter, which forks one process per test; all of them end at once. Last comes the
memory of the whole sandbox with `crowd` submissions in flight: the largest sum of proportional shares seen while each of them sleeps in its test.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from code_rl.grading.sandbox.connect import check_executor, connect_executor
from code_rl.grading.sandbox.executor import Executor, Job, StdinInput
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

SLEEPER = "import time\ntime.sleep(2)\nprint(input())\n"
PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"
SETTINGS = {
    "tests": "1,20",
    "seconds": "5",
    "rounds": "3",
    "concurrency": "4",
    "isolation": "full",
    "crowd": "64",
    "fusion_url": "",
    "harness": "",
    "ray": "",
}
BUBBLEWRAP = [
    "bwrap",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--unshare-all",
    "--die-with-parent",
    "--tmpfs",
    "/tmp",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
]
FIREJAIL = ["firejail", "--quiet", "--private", "--net=none", "--noprofile"]

Way = Callable[[list[bytes]], Awaitable[list[bytes]]]
Rate = tuple[float, float]
"""Submissions a second, processor seconds a submission."""

BARE = """
import ctypes, os, sys, time, gc
python = ctypes.PyDLL(None)
class Arguments(ctypes.Structure):
    _fields_ = [(str(n), ctypes.c_uint64) for n in range(11)]
def submission(tests):
    arguments = Arguments()
    setattr(arguments, "0", 0x10000000 | 0x20000000 | 0x20000)
    setattr(arguments, "4", 17)
    pid = python.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid < 0:
        raise SystemExit("clone3 was refused")
    if pid == 0:
        for _ in range(tests):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        os._exit(0)
    os.waitpid(pid, 0)
gc.freeze()
tests, seconds, lanes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ends = []
for _ in range(lanes):
    reader, writer = os.pipe()
    if os.fork() == 0:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            submission(tests)
            count += 1
        os.write(writer, repr(count / (time.perf_counter() - start)).encode())
        os._exit(0)
    os.close(writer)
    ends.append(reader)
print(sum(float(os.read(reader, 100)) for reader in ends))
"""


def main() -> None:
    if "--help" in sys.argv or "-h" in sys.argv:
        print(__doc__)
        return
    settings = dict(SETTINGS)
    for argument in sys.argv[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        if name not in settings:
            sys.exit(f"unknown setting {name!r}; known: {', '.join(settings)}")
        settings[name] = value
    print(
        " ".join(f"{name}={value}" for name, value in settings.items()),
        f"cpus={len(os.sched_getaffinity(0))}",
        f"load={os.getloadavg()[0]:.1f}",
    )
    asyncio.run(compare(settings))


async def compare(settings: dict[str, str]) -> None:
    seconds, lanes = float(settings["seconds"]), int(settings["concurrency"])
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(EmbeddedSandbox(lanes, settings["isolation"]))
        ways: dict[str, Way] = {
            f"embedded, {box.isolation}": embedded(box),
            "python per test": processes([sys.executable]),
        }
        system_python = shutil.which("python3", path="/usr/bin") or sys.executable
        if shutil.which("bwrap"):
            ways["bubblewrap"] = processes([*BUBBLEWRAP, system_python])
        if shutil.which("firejail"):
            ways["firejail"] = processes([*FIREJAIL, system_python])
        if settings["ray"]:
            nodes = connect_executor(settings["ray"], isolation=settings["isolation"], concurrency=lanes)
            stack.push_async_callback(nodes.aclose)
            await check_executor(nodes)
            print(nodes.description)
            ways["embedded, on Ray"] = embedded(nodes)
        if settings["fusion_url"]:
            ways["Sandbox Fusion, one request per test"] = fusion(settings["fusion_url"])
            if settings["harness"]:
                ways["Sandbox Fusion, the cookbook's harness"] = fusion_harness(
                    settings["fusion_url"], runpy.run_path(settings["harness"])
                )
        ratios: dict[str, dict[str, float]] = {}
        for tests in map(int, settings["tests"].split(",")):
            rates: dict[str, list[Rate]] = {name: [] for name in [*ways, "bare limit"]}
            for _ in range(int(settings["rounds"])):
                for name, way in ways.items():
                    rates[name].append(await rate(name, way, tests, seconds, lanes))
                rates["bare limit"].append((bare(tests, seconds, len(os.sched_getaffinity(0))), math.nan))
            ratios[f"{tests} test(s) a submission"] = show(tests, rates)
    await crowd(int(settings["crowd"]), settings["isolation"])
    print("ratios", json.dumps(ratios))


async def crowd(size: int, isolation: str) -> None:
    """Print the memory of a sandbox with `size` submissions in flight."""
    async with EmbeddedSandbox(size, isolation) as box:

        async def one() -> None:
            async for execution in box.run(Job(SLEEPER, (StdinInput(b"1\n"),))):
                if execution.stdout != b"1\n":
                    sys.exit(f"a sleeper ended with {execution}")

        tasks = [asyncio.create_task(one()) for _ in range(size)]
        largest = processes = 0.0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.2)
            now, count = await asyncio.to_thread(memory_mb)
            largest, processes = max(largest, now), max(processes, count)
        await asyncio.gather(*tasks)
    print(
        f"\n{size} submissions in flight: {largest:.0f} MB in {processes:.0f} processes (proportional shares, this one not counted)"
    )


def show(tests: int, rates: dict[str, list[Rate]]) -> dict[str, float]:
    """Print the rates of all ways; return the embedded sandbox's beside each other one."""
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in rates.items()
    }
    ours, our_cpu = next(iter(medians.values()))
    print(f"\n{tests} test(s) a submission          submissions/s   embedded is   CPU ms a submission   of embedded's")
    for name, (value, cpu) in medians.items():
        print(f"  {name:<38}{value:8.1f}   {ours / value:6.2f}x{1000 * cpu:20.1f}{cpu / our_cpu:12.2f}x")
    others = [*medians.items()][1:]
    return {name: ours / value for name, (value, _) in others}


async def rate(name: str, way: Way, tests: int, seconds: float, lanes: int) -> Rate:
    """Submissions per second of `lanes` loops side by side, and processor seconds for each."""
    inputs = [f"{n} {3 * n}\n".encode() for n in range(tests)]
    expected = [f"{4 * n}\n".encode() for n in range(tests)]
    done = 0

    async def lane(until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            if await way(inputs) != expected:
                sys.exit(f"{name} gave wrong outputs")
            done += 1

    await way(inputs)
    start, before = time.perf_counter(), cpu_s()
    await asyncio.gather(*(lane(start + seconds) for _ in range(lanes)))
    return done / (time.perf_counter() - start), (cpu_s() - before) / done


def embedded(box: Executor) -> Way:
    async def way(inputs: list[bytes]) -> list[bytes]:
        return [one.stdout async for one in box.run(Job(PROGRAM, tuple(map(StdinInput, inputs))))]

    return way


def processes(command: list[str]) -> Way:
    async def way(inputs: list[bytes]) -> list[bytes]:
        outputs = []
        for data in inputs:
            process = await asyncio.create_subprocess_exec(
                *command, "-c", PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            outputs.append((await process.communicate(data))[0])
        return outputs

    return way


def fusion(url: str) -> Way:
    async def way(inputs: list[bytes]) -> list[bytes]:
        answers = [
            await asyncio.to_thread(ask_fusion, url, {"code": PROGRAM, "stdin": data.decode()}) for data in inputs
        ]
        return [answer["stdout"].encode() for answer in answers]

    return way


def fusion_harness(url: str, harness: dict[str, Any]) -> Way:
    """One request per submission: tinker-cookbook's harness runs and compares all tests on the server; exit code 0 is all that it says."""

    async def way(inputs: list[bytes]) -> list[bytes]:
        outputs = [f"{sum(map(int, data.split()))}\n" for data in inputs]
        cases = {"input_output": json.dumps({"inputs": [data.decode() for data in inputs], "outputs": outputs})}
        files = {"test_cases.txt": json.dumps(cases), "code.py": PROGRAM, "testing_util.py": harness["TEST_UTIL"]}
        body = {
            "code": harness["TEST_CODE"] % {"timeout": 6},
            "files": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
            "run_timeout": 7 * len(inputs) + 5,
        }
        answer = await asyncio.to_thread(ask_fusion, url, body)
        return [output.encode() for output in outputs] if answer["return_code"] == 0 else []

    return way


def ask_fusion(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The `run_result` of one request."""
    asked = urllib.request.Request(
        url, json.dumps({"language": "python", **body}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)["run_result"]
    return found


def bare(tests: int, seconds: float, lanes: int) -> float:
    done = subprocess.run(
        [sys.executable, "-S", "-c", BARE, str(tests), str(seconds), str(lanes)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def family() -> set[str]:
    """This process and all below it."""
    parents = {entry: fields[1] for entry in filter(str.isdigit, os.listdir("/proc")) if (fields := stat(entry))}
    below, grown = {str(os.getpid())}, True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in below} - below
        below, grown = below | new, bool(new)
    return below


def stat(pid: str) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return []


def cpu_s() -> float:
    """Processor seconds of the family so far, those of children that have ended included."""
    ticks = sum(sum(map(int, stat(pid)[11:15])) for pid in family())
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb() -> tuple[float, int]:
    """Proportional set size of all processes below this one, and their number."""
    below = family() - {str(os.getpid())}
    total = 0
    for pid in below:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024, len(below)


if __name__ == "__main__":
    main()
