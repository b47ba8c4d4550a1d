"""Programs of other languages are compiled once, run on stdin tests, and judged by the same rules as Python."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil

import pytest

from code_rl import CallTest, Compare, ConfigError, DataError, Problem, StdinTest, extract_code, judge
from code_rl.grading import VerdictKind, judge_async, languages
from code_rl.grading.native import problem_from_json, problem_to_json
from code_rl.util.errors import IsolationError
from tests.boxes import descendants
from tests.grading.corpus.rooms import CONFINED, room
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("boxes")
SQUARES = tuple(StdinTest(f"{n}\n", f"{n * n}\n") for n in (3, 0, 3_000_000_000))
RIGHT = {
    "cpp": "#include <iostream>\nint main() { long long n; std::cin >> n; std::cout << n * n << '\\n'; }",
    "c": '#include <stdio.h>\nint main(void) { long long n; scanf("%lld", &n); printf("%lld\\n", n * n); return 0; }',
    "rust": 'fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); let n: i64 = s.trim().parse().unwrap(); println!("{}", n * n); }',
    "go": 'package main\nimport "fmt"\nfunc main() { var n int64; fmt.Scan(&n); fmt.Println(n * n) }',
    "java": "import java.util.*;\npublic class Main { public static void main(String[] a) { long n = new Scanner(System.in).nextLong(); System.out.println(n * n); } }",
    "javascript": "const n = BigInt(require('fs').readFileSync(0, 'utf8').trim());\nconsole.log(String(n * n));",
}
COMPILERS = {"cpp": "g++", "c": "gcc", "rust": "rustc", "go": "go", "java": "javac", "javascript": "node"}
BELOW_USR = "/usr/local/bin:/usr/bin:/bin"


def installed(name):
    return shutil.which(COMPILERS[name], path=BELOW_USR) is not None


needs = {
    name: pytest.mark.skipif(not installed(name), reason=f"{COMPILERS[name]} is not installed") for name in COMPILERS
}
each_language = pytest.mark.parametrize("name", [pytest.param(name, marks=needs[name]) for name in RIGHT])


def problem(name, tests=SQUARES, **fields):
    """A problem of that language; compiled programs and their runtimes get ten seconds a test."""
    return Problem("squares", "Print n * n.", tests, language=name, **{"time_limit_s": 10.0, **fields})


def judge_at(place, asked, code):
    """The verdict of that executor."""

    async def go():
        async with room(place) as executor:
            return await judge_async(asked, code, executor)

    return asyncio.run(go())


each_level = pytest.mark.parametrize("level", CONFINED)
# Honest programs meet the same compiler at each level: CI runs them at the first.
an_honest_level = pytest.mark.parametrize(
    "level", [CONFINED[0], *(pytest.param(level, marks=pytest.mark.slow) for level in CONFINED[1:])]
)


@an_honest_level
@each_language
def test_a_right_program_passes(name, level):
    verdict = judge_at(level, problem(name), RIGHT[name])
    assert (verdict.kind, verdict.passed, verdict.total) == (VerdictKind.PASSED, 3, 3), verdict


@each_language
def test_a_wrong_program_fails_at_its_first_wrong_test(name):
    verdict = judge(problem(name), RIGHT[name].replace("n * n", "n + n"))
    assert verdict.kind is VerdictKind.WRONG_ANSWER
    assert verdict.passed == 0


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs[name]) for name in RIGHT if name != "javascript"])
def test_a_program_that_does_not_compile_is_told_why(name):
    verdict = judge(problem(name), "this is no program")
    assert verdict.kind is VerdictKind.COMPILE_ERROR
    assert "error" in verdict.failure.message.lower() or "expected" in verdict.failure.message


LIGHT, HEAVY = ("cstdio", "cstdlib", "cstring"), ("iostream", "string", "vector")


def cpp(body):
    """The program with its headers; those of the namespace std take six times as long to compile."""
    return "".join(f"#include <{name}>\n" for name in (*LIGHT, *(HEAVY if "std::" in body else ()))) + body


@each_level
@needs["cpp"]
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("int main() { for (volatile long i = 0;; ) i = i + 1; }", VerdictKind.TIME_LIMIT),
        ("int main() { std::vector<std::string> v; for (;;) v.emplace_back(1 << 20, 'x'); }", VerdictKind.MEMORY_LIMIT),
        ("int main() { return 3; }", VerdictKind.RUNTIME_ERROR),
        ("int main() { abort(); }", VerdictKind.RUNTIME_ERROR),
        ("static char x[1 << 16]; int main() { memset(x, 'x', sizeof x - 1); for (;;) puts(x); }", VerdictKind.OUTPUT_LIMIT),
        # Each page is shared, written and dropped, so that no process maps it.
        (
            "#include <sys/mman.h>\nint main() { char *p = (char *)mmap(0, 600 << 20, 3, 33, -1, 0); for (int i = 0; i < 600; i++) { memset(p + (i << 20), 1, 1 << 20); madvise(p + (i << 20), 1 << 20, MADV_DONTNEED); } }",
            VerdictKind.MEMORY_LIMIT,
        ),
        # Bombs for the compiler
        ("template <int N> struct A { static const long v = A<N - 1>::v + A<N - 2>::v + A<N + 1>::v; }; int main() { return A<9>::v; }", VerdictKind.COMPILE_ERROR),
        ('#include "/dev/zero"\nint main() {}', VerdictKind.COMPILE_ERROR),
        ("char huge[1L << 33] = {1}; int main() {}", VerdictKind.COMPILE_ERROR),
    ],
)  # fmt: skip
def test_what_stops_a_program_is_its_verdict(body, kind, level):
    limit_s = 0.3 if kind is VerdictKind.TIME_LIMIT else 20.0
    assert judge_at(level, problem("cpp", time_limit_s=limit_s, memory_limit_mb=128), cpp(body)).kind is kind


@each_level
@needs["cpp"]
def test_a_test_sees_nothing_of_the_tests_before_it(level):
    counting = cpp("""#include <fstream>
    #include <sys/stat.h>
    #include <utime.h>
    int main() {
        std::string home = getenv("HOME"), tmp = getenv("TMPDIR");
        chmod((home + "/main").c_str(), 0); utime((home + "/main").c_str(), nullptr);
        for (auto path : {tmp + "/seen", home + "/seen"}) {
            std::ofstream(path, std::ios::app) << "x";
            std::ifstream in(path); std::string s; in >> s; std::cout << s.size() << " ";
        }
    }""")
    tests = tuple(StdinTest("", "1 0") for _ in range(3))
    assert judge_at(level, problem("cpp", tests), counting).passed == 3


@each_level
@needs["cpp"]
def test_a_program_cannot_find_the_expected_output(level):
    snoop = cpp(
        """#include <fstream>
int main() { for (auto path : {"/proc/1/environ", "/proc/1/mem", "/etc/passwd", "/box/expected"}) if (std::ifstream(path).get() != EOF) std::cout << path; }"""
    )
    assert judge_at(level, problem("cpp", (StdinTest("", ""),)), snoop).kind is VerdictKind.PASSED


@an_honest_level
@needs["cpp"]
def test_deep_recursion_and_long_inputs_are_no_trouble(level):
    deep = cpp(
        "long f(long n) { volatile char pad[64]; pad[0] = n; return n ? 1 + f(n - 1) + pad[0] * 0 : 0; }\nint main() { long n; std::cin >> n; std::cout << f(n); }"
    )
    assert judge_at(level, problem("cpp", (StdinTest("1000000", "1000000"),)), deep).correct
    total = cpp(
        "int main() { std::ios::sync_with_stdio(false); long n, s = 0; while (std::cin >> n) s += n; std::cout << s; }"
    )
    many = "7654321 " * 1_250_000
    assert judge_at(level, problem("cpp", (StdinTest(many, str(7654321 * 1_250_000)),)), total).correct


@pytest.mark.long
@needs["cpp"]
def test_a_checker_decides_about_a_program_of_another_language():
    accepts = (
        "def check(input, output, expected):\n    a, b = map(int, output.split())\n    return a + b == int(input)\n"
    )
    tests = tuple(StdinTest(str(n), "") for n in range(2, 8))
    sums = problem("cpp", tests, compare=Compare("checker", checker=accepts))
    split = cpp("int main() { int n; std::cin >> n; std::cout << 1 << ' ' << n - 1; }")
    assert judge(sums, split).kind is VerdictKind.PASSED
    assert judge(sums, split.replace("n - 1", "n")).kind is VerdictKind.WRONG_ANSWER


def test_the_last_block_of_the_language_counts():
    answer = "```cpp\nint first;\n```\n```C++\nint last;\n```\n```python\nprint(1)\n```\n"
    assert extract_code(answer, "cpp") == "int last;"
    assert extract_code(answer) == "print(1)"
    assert extract_code("```\nint plain;\n```", "cpp") == "int plain;"


@pytest.mark.parametrize(
    "fields",
    [
        {"tests": (CallTest((1,), 1),), "fn_name": "f"},
        {"compare": Compare("lcb-official")},
        {"language": "cobol"},
    ],
)
def test_what_a_language_does_not_have_is_refused_by_name(fields):
    with refused(fields.get("language", "cpp"), kind=DataError):
        judge(dataclasses.replace(problem("cpp"), **fields), "int main() {}")


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Adds a language to those of this process, for one test."""
    monkeypatch.setattr(languages, "_known", dict(languages._known))

    def add_one(text):
        (tmp_path / "own.toml").write_text(text)
        languages.add_languages(tmp_path / "own.toml")

    return add_one


def test_a_language_that_is_not_installed_is_one_line(add):
    add('[absent]\nfences = ["absent"]\nfile = "a"\nrun = "true"\nversion = "no-such-compiler --version"\n')
    with pytest.raises(ConfigError) as absent:
        judge(problem("absent"), "x")
    assert "no-such-compiler" in absent.value.line()


def test_a_users_own_file_adds_a_language(add):
    add('[shell]\nfences = ["sh", "bash"]\nfile = "main.sh"\nrun = "sh $HOME/main.sh"\nversion = "true"\n')
    assert judge(problem("shell", (StdinTest("4", "16"),)), "read n; echo $((n * n))").kind is VerdictKind.PASSED
    assert extract_code("```bash\necho hi\n```\n```py\n1\n```", "shell") == "echo hi"


@pytest.mark.parametrize(
    "text",
    [
        "[x",
        "[x]\nfile = 1",
        '[x]\nfences = ["x"]\nfile = "../x"\nrun = "x"\nversion = "x"',
        '[x]\nfences = ["x"]\nfile = "x"\nversion = "x"',
        '[x]\nfences = ["x"]\nfile = "x"\nrun = "x"\nversion = "x"\nother = 1',
        '[python]\nfences = ["x"]\nfile = "x"\nrun = "x"\nversion = "x"',
    ],
)
def test_a_malformed_file_of_languages_is_refused(add, text):
    with pytest.raises(ConfigError):
        add(text)


def test_the_language_is_a_field_of_the_native_format():
    assert problem_from_json(problem_to_json(problem("cpp"))) == problem("cpp")
    assert "language" not in problem_to_json(problem("python"))
    assert problem("cpp").view().language == "cpp"


@needs["cpp"]
def test_the_judge_of_files_takes_the_block_of_the_problems_language(tmp_path):
    pytest.importorskip("chz", reason="the verb `judge` needs the extra train")
    from code_rl.cli.main import main

    (tmp_path / "problems.jsonl").write_text(json.dumps(problem_to_json(problem("cpp"))) + "\n")
    answer = f"```cpp\n{RIGHT['cpp']}\n```\nas in\n```python\nprint(int(input()) ** 2)\n```\n"
    row = {"problem_id": "squares", "program_id": 1, "completion": answer}
    (tmp_path / "programs.jsonl").write_text(json.dumps(row) + "\n")
    files = {"dataset": "problems.jsonl", "programs": "programs.jsonl", "out": "verdicts.jsonl"}
    assert main(["judge", *(f"{name}={tmp_path / file}" for name, file in files.items())]) == 0
    assert json.loads((tmp_path / "verdicts.jsonl").read_text())["verdict"] == "passed"


@pytest.mark.parametrize("place", ["landlock", "server", "fusion"])  # all tests of programs above run at full
def test_programs_run_wherever_the_executor_is(place):
    wrong, broken = "int main() { return 0; }", "int main() {"
    kinds = [judge_at(place, problem("cpp"), code).kind for code in (RIGHT["cpp"], wrong, broken)]
    assert kinds == [VerdictKind.PASSED, VerdictKind.WRONG_ANSWER, VerdictKind.COMPILE_ERROR]


def test_a_level_without_boxes_is_refused_by_name():
    with refused("isolation", kind=IsolationError):
        judge_at("none", problem("cpp"), RIGHT["cpp"])


@pytest.mark.long
@needs["cpp"]
def test_limits_and_crashes_are_told_apart_on_a_sandbox_fusion_server():
    slow, crash = "int main() { for (volatile int i = 0;; ++i); }", "int main() { return 3; }"

    assert judge_at("fusion", problem("cpp", SMALL, time_limit_s=0.1), slow).kind is VerdictKind.TIME_LIMIT
    assert judge_at("fusion", problem("cpp", SMALL), crash).kind is VerdictKind.RUNTIME_ERROR


def test_a_language_that_sandbox_fusion_has_not_is_no_verdict_there():
    assert judge_at("fusion", problem("c"), RIGHT["c"]).kind is VerdictKind.SANDBOX_ERROR


@needs["cpp"]
def test_a_problem_is_asked_in_another_language_without_what_only_its_own_has():
    python = Problem(
        "squares", "Print n * n.", SQUARES, solutions=("print(int(input()) ** 2)",), meta={"preamble": "import os"}
    )
    asked = python.in_language("cpp")
    assert (asked.language, asked.solutions, asked.meta) == ("cpp", (), {})
    assert judge(asked, RIGHT["cpp"]).correct
    assert python.in_language(None) is python
    with refused("language", kind=DataError):
        python.in_language("cobol")
    with refused("call tests", kind=DataError):
        Problem("f", "", (CallTest((), 1),), "", "f").in_language("cpp")


THREADS = """#include <mutex>
#include <thread>
int main() {
    int n, sum = 0; std::cin >> n;
    std::mutex guard; std::vector<std::thread> all;
    for (int i = 0; i < 8; ++i) all.emplace_back([&] { std::lock_guard<std::mutex> held(guard); sum += n; });
    for (auto& one : all) one.join();
    std::cout << (long long)n * n + sum - 8 * n << '\\n';
}"""
SMALL = (StdinTest("3\n", "9\n"),)


@an_honest_level
@needs["cpp"]
@pytest.mark.parametrize("memory_limit_mb", [64, pytest.param(1024, marks=pytest.mark.slow), 1 << 20])
def test_threads_are_no_trouble(memory_limit_mb, level):
    assert judge_at(level, problem("cpp", SMALL, memory_limit_mb=memory_limit_mb), cpp(THREADS)).correct


@an_honest_level
@needs["cpp"]
def test_a_program_may_open_its_streams_by_name(level):
    body = 'int main() { freopen("/dev/stdout", "w", stdout); int n; scanf("%d", &n); printf("%d\\n", n * n); }'
    assert judge_at(level, problem("cpp", SMALL), cpp(body)).correct


@each_level
@needs["cpp"]
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_signal_to_the_first_process_is_an_ending(signal, level):
    body = f'#include <signal.h>\nint main() {{ puts("9"); fflush(stdout); kill(1, {signal}); return 3; }}'
    assert judge_at(level, problem("cpp", SMALL), cpp(body)).kind is VerdictKind.RUNTIME_ERROR


FLOODS = {
    "files in memory": 'for (int k = 0; k < 64; ++k) { int f = syscall(319, "x", 0); for (int i = 0; i < 200; ++i) if (write(f, b, sizeof b) < 0) break; }',
    "sockets": "for (int i = 0; i < 400; ++i) { int s[2]; socketpair(1, 2049, 0, s); while (write(s[0], b, 4096) > 0); }",
    "page tables": "char* p = (char*)mmap(0, 900L << 30, 1, 16418, -1, 0); for (long i = 0; i < 900L << 30; i += 2 << 20) sink += p[i];",
}


@each_level
@needs["cpp"]
@pytest.mark.parametrize("name", FLOODS)
def test_memory_that_no_process_seems_to_hold_is_no_fault_of_the_sandbox(name, level):
    head = "#include <sys/mman.h>\n#include <sys/socket.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n"
    body = f"static char b[1 << 20]; volatile long sink; int main() {{ for (int k = 0; k < 15; ++k) if (!fork()) break; {FLOODS[name]} }}"
    verdict = judge_at(level, problem("cpp", SMALL, memory_limit_mb=64), head + body)
    assert verdict.kind is not VerdictKind.COMPILE_ERROR, verdict
    assert not verdict.correct
    assert not verdict.undecided, verdict


NEAR = """#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
int main(int count, char **names) {
    std::ifstream input(names[1]), output(names[2]), answer(names[3]);
    double given, right, asked;
    if (count != 4 || !(input >> asked) || !(answer >> right)) return 3;
    if (!(output >> given)) { std::cerr << "no number\\n"; return 2; }
    if (given == 13) std::abort();
    if (std::fabs(given - right) > 0.01) { std::cerr << "too far from the root of " << asked << "\\n"; return 1; }
}
"""


def roots(checker=NEAR, **fields):
    """Square roots, which a checker in C++ judges by testlib's convention."""
    tests = tuple(StdinTest(f"{n}\n", f"{n**0.5}\n", public=True) for n in (2, 9))
    compare = Compare("checker", checker=checker, checker_language="cpp")
    return Problem("roots", "Print the square root.", tests, compare=compare, **{"solutions": (ROOT,), **fields})


ROOT = "print(float(input()) ** 0.5)"
CHECKED = {
    "right, in other digits": ("print(round(float(input()) ** 0.5, 3))", "passed"),
    "wrong, and the checker says why": ("print(1)", "wrong_answer"),
    "no number": ("print('x')", "wrong_answer"),
    "stops the checker": ("print(13)", "wrong_answer"),
    "not UTF-8": ("import sys\nsys.stdout.buffer.write(b'\\xff')", "wrong_answer"),
}


@needs["cpp"]
@pytest.mark.parametrize(("code", "kind"), CHECKED.values(), ids=CHECKED)
def test_a_checker_in_another_language_follows_testlibs_convention(code, kind):
    verdict = judge(roots(), code)
    assert verdict.kind == kind, verdict
    if code == "print(1)":
        assert "too far from the root of 2" in verdict.failure.message
    assert problem_from_json(problem_to_json(roots())) == roots()


@needs["cpp"]
@pytest.mark.parametrize("solutions", [(), (ROOT,)], ids=["without a solution", "with one"])
def test_a_checker_that_does_not_compile_is_the_problems_fault(solutions):
    verdict = judge(roots('#include "no_such_header.h"\nint main() {}', solutions=solutions), ROOT)
    assert verdict.kind is VerdictKind.CHECKER_ERROR


def test_a_checker_of_call_tests_is_in_python():
    compare = Compare("checker", checker=NEAR, checker_language="cpp")
    call = Problem("f", "Return 1.", (CallTest((), 1),), "", "f", compare=compare)
    with refused("checker_language", kind=DataError):
        judge(call, "def f(): return 1")


HIDES = """#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    struct sigaction no_zombies = {.sa_flags = SA_NOCLDWAIT};
    signal(SIGCHLD, SIG_IGN);
    sigaction(SIGCHLD, &no_zombies, 0);
    for (int k = 0; k < 4000; k++) {
        if (!fork()) { for (volatile long x = 0; x < 20000000L; x++); _exit(0); }
        wait(0);
    }
    puts("9");
}"""


@each_level
@needs["c"]
def test_a_program_cannot_hide_the_processor_time_of_its_processes(level):
    verdict = judge_at(level, problem("c", SMALL, time_limit_s=1.0), HIDES)
    assert verdict.kind is VerdictKind.TIME_LIMIT
    assert verdict.cpu_s >= 1


@each_level
@needs["cpp"]
def test_memory_counts_when_the_main_thread_has_ended(level):
    body = """#include <pthread.h>
    #include <thread>
    int main() {
        std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            std::string held(200 << 20, 'x');
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            std::cout << 8 + held.size() / held.size() << std::endl;
            exit(0);
        }).detach();
        pthread_exit(nullptr);
    }"""
    verdict = judge_at(level, problem("cpp", SMALL, memory_limit_mb=64), cpp(body))
    assert verdict.kind is VerdictKind.MEMORY_LIMIT


@needs["cpp"]
def test_equal_programs_at_once_leave_no_box():
    async def run():
        async with room("full", 3, own=True) as executor:
            return await asyncio.gather(*(judge_async(problem("cpp"), RIGHT["cpp"], executor) for _ in range(3)))

    before = descendants()
    assert [verdict.correct for verdict in asyncio.run(run())] == [True] * 3
    assert descendants() <= before
