"""Our server speaks Sandbox Fusion's protocol."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import textwrap
import urllib.error
import urllib.request

import pytest

from tests.boxes import require_boxes
from tests.grading.fusion.fusion_support import ServerProcess


def post(server: ServerProcess, body, path="/run_code"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def run(server: ServerProcess, code: str, **fields):
    status, answer = post(server, {"code": textwrap.dedent(code), "language": "python", **fields})
    assert status == 200
    return answer


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_health_and_figures_of_the_server_can_be_scraped(server: ServerProcess):
    def text(path):
        with urllib.request.urlopen(server.url + path) as response:
            return response.read().decode()

    def ended(status):
        found = re.search(rf'requests_total{{status="{status}"}} (\d+)', text("/metrics"))
        return int(found[1]) if found else 0

    assert json.loads(text("/health")) == {"status": "ok"}
    before = ended("Success"), ended("Failed")
    run(server, "print(1)")
    run(server, "raise ValueError")
    assert (ended("Success"), ended("Failed")) == (before[0] + 1, before[1] + 1)
    assert "code_rl_sandbox_requests_held 0" in text("/metrics")
    assert "code_rl_sandbox_places 4" in text("/metrics")


def test_the_shape_of_a_successful_answer(server: ServerProcess):
    answer = run(server, "import sys; print(input()); print('err', file=sys.stderr)", stdin="hello")
    assert set(answer) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    assert (answer["status"], answer["message"], answer["compile_result"], answer["files"]) == ("Success", "", None, {})
    result = answer["run_result"]
    assert set(result) == {"status", "execution_time", "return_code", "stdout", "stderr"}
    assert (result["status"], result["return_code"]) == ("Finished", 0)
    assert (result["stdout"], result["stderr"]) == ("hello\n", "err\n")
    assert result["execution_time"] > 0


@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("raise ValueError", 1, "ValueError"),
        ("def f(:", 1, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.abort()", -6, ""),
    ],
)
def test_any_nonzero_end_is_failed_with_its_return_code(server: ServerProcess, code, return_code, stderr):
    answer = run(server, code)
    result = answer["run_result"]
    assert (answer["status"], result["status"], result["return_code"]) == ("Failed", "Finished", return_code)
    assert stderr in result["stderr"]


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_run_timeout_is_wall_time_and_keeps_output_and_files(server: ServerProcess, code):
    begin = "print('before', flush=True)\nopen('a', 'w').write('so far')\n"
    answer = run(server, begin + code, run_timeout=1, fetch_files=["a"])
    assert (answer["status"], base64.b64decode(answer["files"]["a"])) == ("Failed", b"so far")
    result = answer["run_result"]
    assert (result["status"], result["return_code"], result["stdout"]) == ("TimeLimitExceeded", None, "before\n")


def test_the_memory_limit_holds_and_a_program_meets_memory_error_at_it(server: ServerProcess):
    code = "x = bytearray(900 << 20); print(len(x))"
    answer = run(server, code, memory_limit_MB=200)
    assert answer["status"] == "Failed"
    assert answer["run_result"]["return_code"] != 0
    assert "peak of" not in json.dumps(answer)
    assert "MemoryError" in answer["run_result"]["stderr"] or "more than 200 MB" in answer["message"]
    caught = run(server, f"try: {code}\nexcept MemoryError: print('caught')", memory_limit_MB=200)
    assert (caught["status"], caught["run_result"]["stdout"]) == ("Success", "caught\n")
    assert run(server, code)["status"] == "Success"


def test_large_output_is_not_cut(server: ServerProcess):
    assert run(server, "print('x' * 5_000_000)")["run_result"]["stdout"] == "x" * 5_000_000 + "\n"


def test_output_that_is_not_utf8_becomes_replacement_text(server: ServerProcess):
    answer = run(server, r"import sys; sys.stdout.buffer.write(b'a\xffb')")
    assert answer["run_result"]["stdout"] == "a\ufffdb"


def test_files_lie_in_the_working_directory_and_come_back(server: ServerProcess):
    code = """
        import helper
        open("out/result.bin", "wb").write(bytes(range(256)) + helper.DATA.encode())
        """
    files = {
        "helper.py": b64(b"DATA = open('data.txt').read()"),
        "data.txt": b64(b"42"),
        "out/x": b64(b""),
        "nothing": None,
    }
    answer = run(server, code, files=files, fetch_files=["out/result.bin", "data.txt", "absent", "out"])
    assert answer["status"] == "Success", answer
    got = {path: base64.b64decode(text) for path, text in answer["files"].items()}
    assert got == {"out/result.bin": bytes(range(256)) + b"42", "data.txt": b"42"}


def test_a_link_is_not_followed_out_of_the_working_directory(server: ServerProcess):
    code = "import os; os.symlink('/proc/self/environ', 'a'); os.symlink('/etc', 'd')"
    assert run(server, code, fetch_files=["a", "d/passwd"])["files"] == {}


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", ".", "d/", "a/.", "x" * 300, "a/" * 64 + "b"]
)
def test_paths_outside_the_working_directory_are_refused(server: ServerProcess, path):
    for fields in ({"files": {path: b64(b"x")}}, {"fetch_files": [path]}):
        answer = run(server, "print(1)", **fields)
        assert answer["status"] == "SandboxError"
        assert "working directory" in answer["message"]
        assert answer["run_result"] is None


def test_more_files_than_can_be_laid_out_are_no_fault_of_the_program(server: ServerProcess):
    answer = run(server, "print(1)", files={f"f{n}": "" for n in range(4001)})
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert "more than 4000" in answer["message"]


def test_as_many_files_as_are_allowed_can_be_laid_out(server: ServerProcess):
    deep = "d/" * 63 + "f"
    answer = run(server, f"print(open({deep!r}).read())", files={deep: b64(b"x"), **{f"f{n}": "" for n in range(3936)}})
    assert answer["run_result"]["stdout"] == "x\n", answer


def test_base64_that_cannot_be_read_is_a_sandbox_error_that_names_the_file(server: ServerProcess):
    answer = run(server, "print(1)", files={"a.txt": "a"})
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert "a.txt" in answer["message"]


def test_base64_is_read_as_leniently_as_by_the_real_server(server: ServerProcess):
    answer = run(server, "print(open('a').read(), open('b').read())", files={"a": "eA==", "b": "%e%\nQ=="})
    assert answer["run_result"]["stdout"] == "x y\n"


def test_a_file_whose_path_says_so_is_ignored(server: ServerProcess):
    files = {"../IGNORE_THIS_FILE": "a", "d/IGNORE_THIS_FILE.txt": b64(b"x")}
    answer = run(server, "import os; print(os.path.exists('d'))", files=files)
    assert answer["run_result"]["stdout"] == "False\n"


@pytest.mark.parametrize("seconds", [0, "0", -0.0])
def test_a_run_timeout_of_nothing_times_out_at_once(server: ServerProcess, seconds):
    answer = run(server, "print(1)", run_timeout=seconds)
    result = answer["run_result"]
    assert (answer["status"], result["status"], result["return_code"], result["stdout"]) == (
        "Failed",
        "TimeLimitExceeded",
        None,
        "",
    )


def test_a_slash_at_the_end_of_the_address_makes_no_difference(server: ServerProcess):
    status, answer = post(server, {"code": "print(1)", "language": "python"}, "/run_code/")
    assert (status, answer["run_result"]["stdout"]) == (200, "1\n")


@pytest.mark.parametrize("language", ["cpp_ut", "bash", "cobol"])
def test_languages_that_are_not_known_are_refused_by_name(server: ServerProcess, language):
    status, answer = post(server, {"code": "x", "language": language})
    assert (status, answer["status"], answer["run_result"]) == (200, "SandboxError", None)
    assert repr(language) in answer["message"]


def test_a_language_that_the_level_does_not_run_is_an_answer():
    with ServerProcess(isolation="none") as server:
        status, answer = post(server, {"code": "int main() {}", "language": "cpp"})
    assert (status, answer["status"], answer["run_result"]) == (200, "SandboxError", None)
    assert "isolation" in answer["message"]


@pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="g++ is not installed")
def test_programs_of_other_languages_are_compiled_and_run(server: ServerProcess):
    require_boxes()
    right = {"code": '#include <cstdio>\nint main() { puts("hi"); return 2; }', "language": "cpp"}
    _, answer = post(server, right)
    assert (answer["status"], answer["run_result"]["stdout"], answer["run_result"]["return_code"]) == (
        "Failed",
        "hi\n",
        2,
    )
    _, answer = post(server, {"code": "int main() {", "language": "cpp"})
    assert (answer["status"], answer["run_result"], answer["compile_result"]["return_code"]) == ("Failed", None, 1)
    assert "error" in answer["compile_result"]["stderr"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"code": "x"}, "language"),
        ({"language": "python"}, "code"),
        ({"code": "x", "language": 5}, "language"),
        ({"code": "x", "language": "python", "run_timeout": "soon"}, "run_timeout"),
        ({"code": "x", "language": "python", "run_timeout": "inf"}, "run_timeout"),
        ({"code": "x", "language": "python", "run_timeout": -0.5}, "run_timeout"),
        ({"code": "x", "language": "python", "compile_timeout": -1}, "compile_timeout"),
        ({"code": "x", "language": "python", "files": {"a": 1}}, "files"),
        ({"code": "x", "language": "python", "fetch_files": "a"}, "fetch_files"),
        ({"code": "x", "language": "python", "stdin": 3}, "stdin"),
        ({"code": "x", "language": "python", "memory_limit_MB": 1.5}, "memory_limit_MB"),
    ],
)
def test_a_malformed_request_is_422_and_names_the_field(server: ServerProcess, body, field):
    status, answer = post(server, body)
    assert status == 422
    assert answer["detail"][0]["loc"][:2] == ["body", field]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000])
def test_a_body_that_is_no_object_is_422(server: ServerProcess, body):
    assert post(server, body)[0] == 422


def test_text_that_cannot_be_encoded_is_refused(server: ServerProcess):
    for fields in ({"code": "print('\ud800')"}, {"code": "print(1)", "stdin": "\udfff"}):
        status, answer = post(server, {"language": "python", **fields})
        assert (status, answer["detail"][0]["type"]) == (422, "json_invalid")


BODY = json.dumps({"code": "print(1)", "language": "python"}).encode()
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
        ({**JSON, "Origin": "https://evil.invalid"}, 403),
        ({**JSON, "Origin": "null"}, 403),
        ({**JSON, "Host": "localhost:8080"}, 200),
        ({**JSON, "Host": "evil.invalid:8080"}, 403),
        ({**JSON, "Host": "127.0.0.1.evil.invalid"}, 403),
    ],
)
def test_a_web_page_cannot_have_a_program_run(server: ServerProcess, headers, status):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/run_code", BODY, headers)
    assert connection.getresponse().status == status


def test_a_request_that_states_no_time_gets_what_the_server_allows():
    with ServerProcess(max_run_s=5) as short:
        assert post(short, {"code": "print(1)", "language": "python"})[0] == 200
        assert post(short, {"code": "print(1)", "language": "python", "run_timeout": 6})[0] == 422
