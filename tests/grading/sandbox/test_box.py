"""A box runs commands, keeps files from one to the next, and names the limit that ended a command. Nothing of a command outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

import code_rl
from code_rl.util.errors import ConfigError, DataError, IsolationError, SandboxError
from tests.boxes import descendants, end_server, require_boxes, shared_server, start_server
from tests.refusals import refused
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("boxes")
COMPILERS = {"g++": "/usr/bin/g++"}


@pytest.fixture(scope="module", params=["full", "landlock"])
def level(request):
    """An isolation level of boxes that this machine has."""
    require_boxes(request.param)
    return request.param


class Waited:
    """An object whose calls are waited for."""

    def __init__(self, awaited, runner):
        self.awaited, self.runner = awaited, runner

    def __getattr__(self, name):
        return lambda *args, **more: self.runner.run(getattr(self.awaited, name)(*args, **more))


@contextlib.contextmanager
def a_box(level="auto", **settings):
    """An open box whose calls are waited for."""
    opened = contextlib.AsyncExitStack()
    with asyncio.Runner() as runner:
        box = runner.run(opened.enter_async_context(code_rl.open_box(level, **settings)))
        try:
            yield Waited(box, runner)
        finally:
            runner.run(opened.aclose())


def in_a_box(*commands, level="auto", **limits):
    """The results of commands in one box."""
    with a_box(level) as box:
        return [box.run(command, **limits) for command in commands]


def python(source):
    return f"exec python3 - <<'EOF'\n{textwrap.dedent(source)}\nEOF\n"


def test_a_command_gets_its_input_and_gives_outputs_and_an_exit_code(level):
    (result,) = in_a_box("cat; echo oops >&2; exit 3", stdin=b"hello", level=level)
    assert (result.exit_code, result.stdout, result.stderr, result.limit) == (3, b"hello", b"oops\n", None)
    assert result.cpu_s > 0
    assert result.wall_s > 0
    assert result.peak_memory_bytes > 0


def test_a_signal_is_a_negative_exit_code(level):
    (result,) = in_a_box("kill -SEGV $$", level=level)
    assert result.exit_code == -signal.SIGSEGV


def test_files_stay_from_command_to_command_and_those_of_tmp_do_not(level):
    *_, kept = in_a_box("echo 1 > kept; echo 1 > $TMPDIR/lost", "cd $HOME; ls . $TMPDIR | grep -v :", level=level)
    assert kept.stdout == b"kept\n\n"


def test_files_are_put_in_and_read_back(level):
    data = bytes(range(256)) * 1000
    with a_box(level) as box:
        box.write("a/b/data", data)
        box.run("cp a/b/data copy")
        assert box.read("copy") == data


@pytest.mark.skipif(not os.path.exists(COMPILERS["g++"]), reason="g++ is not installed")
def test_a_program_is_compiled_once_and_run_where_it_can_change_nothing(level):
    spoils = "echo mine > left; echo mine > $HOME/left; chmod 0 $HOME/main; rm $HOME/main"
    with a_box(level) as box:
        box.write("main.cpp", b"#include <iostream>\nint main() { long a; std::cin >> a; std::cout << a * a; }")
        built = box.run("g++ -O2 main.cpp -o main")
        assert built.exit_code == 0, built.stderr
        first = box.run(f"$HOME/main; {spoils}", b"3000000000", home_read_only=True)
        assert first.stdout == b"9000000000000000000"
        assert box.run("ls; cd $HOME; ls -F", home_read_only=True).stdout == b"main*\nmain.cpp*\n"


@pytest.mark.parametrize(
    ("command", "limits", "limit"),
    [
        ("while :; do :; done", {"cpu_s": 0.3}, "cpu"),
        ("sleep 60", {"wall_s": 0.3}, "wall"),
        ("yes", {"output_bytes": 1000}, "output"),
        ("yes >&2", {"output_bytes": 1000}, "output"),
        (python("x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"), {"memory_mb": 64}, "memory"),
        # In many processes, each far below the limit
        (python("import os, time\nfor _ in range(20):\n if not os.fork():\n  x = b'x' * (20 << 20)\n  time.sleep(60)\ntime.sleep(60)"), {"memory_mb": 128}, "memory"),
        # Each short process is below the limit
        ("while :; do python3 -c 'for i in range(1000000): pass'; done", {"cpu_s": 0.5}, "cpu"),
    ],
)  # fmt: skip
def test_the_limit_that_ended_a_command_is_named_and_the_box_goes_on(command, limits, limit, level):
    with a_box(level) as box:
        ended = box.run(command, **limits)
        assert ended.limit == limit
        assert len(ended.stdout) + len(ended.stderr) <= 1 << 20
        assert box.run("echo on").stdout == b"on\n"


def test_background_processes_end_with_the_command(level):
    first, second = in_a_box(
        "(setsid sh -c 'sleep 1; echo late > late; sleep 60' &) ; echo done",
        "sleep 1.5; ls; ls /proc | grep -c '^[0-9]'",
        level=level,
    )
    assert first.stdout == b"done\n"
    assert "late" not in second.stdout.decode()


def test_a_fork_bomb_meets_the_number_of_processes(level):
    bomb, after = in_a_box(
        python("import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
        "echo on",
        wall_s=1,
        cpu_s=2,
        level=level,
    )
    assert bomb.limit in ("wall", "cpu", "memory")
    assert after.stdout == b"on\n"


def test_the_directory_has_a_quota():
    many = "head -c 20000000 /dev/zero"
    with a_box(disk_mb=8) as box:
        flood = box.run(f"{many} > flood; wc -c < flood; rm flood; {many} > /tmp/flood")
        assert int(flood.stdout) <= 8 << 20
        assert flood.exit_code != 0
        with pytest.raises(DataError):
            box.write("big", bytes(9 << 20))
        box.run("rm -rf /box/*")
        box.write("fits", bytes(1 << 20))


# What each says on success is on standard output: a refused attempt says nothing there.
ESCAPES = {
    "network": "import socket\nsocket.socket()\nprint('escaped')",
    "udp": "import socket\nsocket.socket(type=socket.SOCK_DGRAM)\nprint('escaped')",
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX)\nprint('escaped')",
    "ptrace": "import ctypes, os, time\np = os.fork()\nif not p: time.sleep(5); os._exit(0)\nif ctypes.CDLL(None).ptrace(16, p, 0, 0) == 0: print('escaped')",
    "memory of others": "open('/proc/1/mem', 'rb+').seek(0)\nprint('escaped')",
    "descriptors of others": "import os\nos.listdir('/proc/1/fd')\nprint('escaped')",
    "mount": "import ctypes\nif ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0: print('escaped')",
    "remount": "import ctypes\nif ctypes.CDLL(None).mount(None, b'/usr', None, 32 | 4096, None) == 0: print('escaped')",
    "namespaces": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('escaped')",
    "namespaces by clone": "import ctypes\nif ctypes.CDLL(None).syscall(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0: print('escaped')",
    "chroot": "import os\nos.chroot('/tmp')\nprint('escaped')",
    "keys": "import ctypes\nif ctypes.CDLL(None).syscall(250, 0, -3, 1) >= 0: print('escaped')",
    "bpf": "import ctypes\nif ctypes.CDLL(None).syscall(321, 0, 0, 0) >= 0 or ctypes.get_errno() == 22: print('escaped')",
    "io_uring": "import ctypes\nb = ctypes.create_string_buffer(256)\nif ctypes.CDLL(None).syscall(425, 1, b) >= 0: print('escaped')",
    "userfaultfd": "import ctypes\nif ctypes.CDLL(None).syscall(323, 0) >= 0: print('escaped')",
    "another user": "import os\nos.setuid(0)\nprint('escaped')",
    "devices": "import os, stat\nos.mknod('sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0))\nprint('escaped')",
    "system files": "open('/usr/bin/evil', 'w')\nprint('escaped')",
    "the root": "import os\nos.mkdir('/evil')\nprint('escaped')",
    "host files": "open('/etc/passwd')\nprint('escaped')",
    "homes": "import os\nprint('escaped', os.listdir('/root'))",
    "the kernel's settings": "open('/proc/sys/kernel/core_pattern', 'w')\nprint('escaped')",
    "its control group": "import os\nos.listdir('/sys/fs/cgroup')\nprint('escaped')",
    "its priority": "import os\nos.nice(-1)\nprint('escaped')",
    "lines of other commands": "open('/proc/1/cmdline')\nprint('escaped')",
    "a link to a file outside": "import os\nos.link('/usr/bin/id', 'id')\nprint('escaped')",
    "modes of files outside": "import os\nos.chmod('/usr/bin/id', 0o777)\nprint('escaped')",
    "shared memory": "import os\nopen('/dev/shm/x', 'w')\nif not os.path.islink('/dev/shm'): print('escaped')",
    "its limits": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))\nprint('escaped')",
}  # fmt: skip


@pytest.fixture(scope="module")
def attempts(level):
    """{attempt: result}, all in one box."""
    results = in_a_box(*(python(source) for source in ESCAPES.values()), level=level)
    return dict(zip(ESCAPES, results, strict=True))


@pytest.mark.parametrize("name", ESCAPES)
def test_what_leads_out_is_refused(attempts, name):
    result = attempts[name]
    assert result.stdout == b"", name
    assert b"SyntaxError" not in result.stderr


def test_the_same_harness_says_when_an_attempt_succeeds(level):
    (result,) = in_a_box(python("import os\nos.mkdir('fine')\nprint('escaped')"), level=level)
    assert result.stdout == b"escaped\n"


# Commands that people write, with their output.
HONEST = {
    "a pipe": ("seq 5 | tac | tr '\\n' ' '", "5 4 3 2 1 "),
    "a loop": ("for i in 1 2 3; do echo $((i * i)); done", "1\n4\n9\n"),
    "a background job": ("sleep 0.1 & wait $!; echo $?", "0\n"),
    "a group of processes": ("timeout 0.2 sleep 9; echo $?", "124\n"),
    "a trap": ("trap 'echo bye' EXIT; echo hi", "hi\nbye\n"),
    "a signal to a child": ("sleep 9 & kill $!; wait $!; echo $?", "143\n"),
    "a temporary file": ('f=$(mktemp); echo 1 > "$f"; cat "$f"; rm "$f"', "1\n"),
    "a mode": ("echo 'echo ran' > x; chmod 700 x; ./x", "ran\n"),
    "a time": ("touch -d 2001-01-01 x; date -u -r x +%Y", "2001\n"),
    "links": ("echo 1 > x; ln x y; ln -s y z; cat z", "1\n"),
    "a move between directories": ("mkdir d e; echo 1 > d/x; mv d/x e/x; cat e/x", "1\n"),
    "find": ("mkdir -p a/b; touch a/b/c; find . -type f", "./a/b/c\n"),
    "sort and uniq": ("printf 'b\\na\\nb\\n' | sort | uniq -c | tr -s ' '", " 1 a\n 2 b\n"),
    "awk": ("echo 3 4 | awk '{print $1 * $2}'", "12\n"),
    "sed in place": ("echo cat > x; sed -i s/c/h/ x; cat x", "hat\n"),
    "an archive": ("echo 1 > x; tar czf x.tgz x; rm x; tar xzf x.tgz; cat x", "1\n"),
    "xargs in parallel": ("seq 4 | xargs -P 4 -n 1 expr 1 + | sort | tr '\\n' ' '", "2 3 4 5 "),
    "bash's own": ("bash -c 'a=(1 2); cat <(echo ${#a[@]})'", "2\n"),
    "input by name": ("echo 5 | cat /dev/stdin > /dev/stdout", "5\n"),
    "python's processes": ("python3 -c 'import subprocess as s; print(s.run([\"echo\", \"x\"], capture_output=True).stdout)'", "b'x\\n'\n"),
    "python's threads": ("python3 -c 'from concurrent.futures import *; print(list(ThreadPoolExecutor(4).map(abs, [-1, 2])))'", "[1, 2]\n"),
    "python's temporary files": ("python3 -c 'import tempfile; f = tempfile.TemporaryFile(); print(f.write(b\"xyz\"))'", "3\n"),
    "a python module": ("echo 'x = 7' > m.py; python3 -c 'import m; print(m.x)'; ls __pycache__ | wc -l", "7\n1\n"),
    "a data base": ("python3 -c 'import sqlite3; c = sqlite3.connect(\"x.db\"); c.execute(\"create table t(x)\"); c.commit(); print(c.execute(\"select count(*) from t\").fetchone())'", "(0,)\n"),
    "a decimal sum": ("python3 -c 'from decimal import *; print(Decimal(1) / 8)'", "0.125\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def outputs(level):
    """{name: result}, each in a directory of its own."""
    commands = [f"mkdir {number}; cd {number}\n{command}" for number, (command, _) in enumerate(HONEST.values())]
    return dict(zip(HONEST, in_a_box(*commands, level=level), strict=True))


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_command_works(outputs, name):
    result = outputs[name]
    assert (result.stdout.decode(), result.exit_code) == (HONEST[name][1], 0), result


def test_processes_outside_are_neither_seen_nor_signalled(level):
    outside = subprocess.Popen(["sleep", "60"])
    try:
        _, seen = in_a_box(
            f"kill -9 {outside.pid}; kill -9 1; kill -9 -1", "ls /proc | grep '^[0-9]' | wc -l", level=level
        )
        assert outside.poll() is None
        assert int(seen.stdout) <= 6
    finally:
        outside.kill()
        outside.wait()


def test_set_user_id_has_no_effect(level):
    _, result = in_a_box(
        "cp /usr/bin/id id; chmod u+s id", "./id -u; /usr/bin/su -c id </dev/null 2>&1 | head -1 >&2", level=level
    )
    assert int(result.stdout) >= 1000
    assert b"uid=0" not in result.stderr


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/proc/1/environ", "/proc/1/mem", "/root", "../../etc/shadow", "/dev/zero"]
)
def test_a_link_leads_no_read_outside_or_to_a_device_without_an_end(target, level):
    with a_box(level, disk_mb=4) as box:
        box.run(f"ln -s {target} link")
        with pytest.raises(DataError):
            box.read("link")


@pytest.mark.long
def test_many_boxes_open_and_close_at_once(level):
    async def one():
        async with code_rl.open_box(level) as box:
            return (await box.run("true")).exit_code

    async def run():
        return await asyncio.gather(*(one() for _ in range(48)))

    assert asyncio.run(run()) == [0] * 48


def test_boxes_do_not_see_each_other(level):
    async def run():
        async with code_rl.open_box(level) as one, code_rl.open_box(level) as other:
            await one.write("secret", b"of one")
            running = asyncio.create_task(one.run("sleep 1"))
            found = await other.run("ls; find / -name secret 2>/dev/null; grep -l '[s]leep' /proc/[0-9]*/cmdline")
            await running
            return found

    assert asyncio.run(run()).stdout == b""


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_a_path_that_leaves_the_directory_is_refused(path):
    with a_box() as box:
        with pytest.raises(ConfigError):
            box.read(path)
        with pytest.raises(ConfigError):
            box.write(path, b"")


@pytest.mark.parametrize(
    "settings",
    [
        *({"cpu_s": 0}, {"wall_s": -1}, {"memory_mb": 0}, {"output_bytes": 0}, {"processes": 0}),
        *({"cpu_s": "1"}, {"stdin": "text"}),
    ],
)
def test_an_argument_that_a_command_cannot_have_is_refused(settings):
    with pytest.raises(ConfigError):
        in_a_box("true", **settings)


def test_a_command_that_is_no_utf_8_is_refused():
    with refused("command"):
        in_a_box("echo \ud800")


@pytest.mark.parametrize("level", ["none", "other"])
def test_a_level_without_walls_is_refused_by_name(level):
    with refused(level, kind=IsolationError):
        in_a_box("true", level=level)


def test_without_a_user_of_its_own_a_box_at_landlock_is_refused_by_name():
    source = "import asyncio, code_rl\nasync def main():\n async with code_rl.open_box('landlock'): pass\nasyncio.run(main())"
    unprivileged = ["unshare", "--user", "--map-user=1000"]
    if subprocess.run([*unprivileged, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not available")
    command = subprocess.run([*unprivileged, sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "IsolationError" in command.stderr.splitlines()[-1]
    assert "isolation=landlock" in command.stderr.splitlines()[-1]


def test_directories_at_the_root_are_refused_where_there_is_no_root_of_its_own():
    with refused("writable", kind=IsolationError), a_box("landlock", writable=("/app",)):
        pass


def test_a_closed_box_says_so_and_a_cancelled_command_closes_it(level):
    async def run():
        async with code_rl.open_box(level) as box:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await box.run("sleep 60")
            with pytest.raises(SandboxError):
                await box.run("true")

    asyncio.run(run())


OWNER = """
import asyncio, code_rl
async def main():
    async with code_rl.open_box({2!r}, url={1!r}) as box:
        print("open", flush=True)
        await box.run("setsid sleep {0} & sleep {0}", wall_s=600)
asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["full", "landlock", "a server"])
def test_everything_ends_with_an_owner_that_is_killed(place):
    seconds, url = str(40000 + os.getpid()), shared_server(4) if place == "a server" else None
    level = "auto" if url else place
    require_boxes(level)
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)
        command = [sys.executable, "-c", OWNER.format(seconds, url, level)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": scratch})
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        until(lambda: len(sleepers(seconds)) >= 2)
        owner.kill()
        owner.wait()
        owner.stdout.close()
        until(lambda: not sleepers(seconds) and not os.listdir(scratch))


def test_processes_that_fight_back_end_with_their_command(level):
    seconds = str(80000 + os.getpid())
    fight = f"""
        import os, signal, subprocess
        subprocess.Popen(["sleep", "{seconds}"], start_new_session=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}})
        for _ in range(20):
            if not os.fork():
                os.setsid()
                while True:
                    for number in (signal.SIGSTOP, signal.SIGKILL):
                        try: os.kill(-1, number)
                        except OSError: pass
        """
    *_, after = in_a_box(*[python(fight)] * 5, "echo on", level=level, wall_s=2, processes=40)
    assert after.stdout == b"on\n"
    assert not sleepers(seconds)


def sleepers(seconds):
    """The processes on this machine that sleep for so many seconds."""
    found = subprocess.run(["pgrep", "-fx", f"sleep {seconds}"], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_a_box_on_a_server_runs_commands_and_keeps_files_there():
    with a_box(url=shared_server(4), environment={"COLOR": "blue"}) as box:
        box.write("bin/hello", b"#!/bin/sh\necho hello $COLOR; cat; echo oops >&2; exit 3\n")
        result = box.run("bin/hello | tee kept; bin/hello", stdin=b"again")
        assert (result.exit_code, result.stderr, result.limit) == (3, b"oops\noops\n", None)
        cut = box.run("yes", output_bytes=1000)
        assert (len(cut.stdout), cut.limit) == (1000, "output")
        with pytest.raises(DataError):
            box.read("absent")
        with pytest.raises(ConfigError):
            box.run("true", memory_mb=1 << 30)
        assert box.read("kept") == b"hello blue\nagain"


@pytest.mark.slow
def test_a_box_on_a_server_lives_through_a_long_command_and_a_long_pause():
    with a_box(url=shared_server(4)) as box:
        box.write("kept", b"1")
        box.run("sleep 70", wall_s=200)
        box.runner.run(asyncio.sleep(70))
        assert box.read("kept") == b"1"


def test_a_box_on_a_server_needs_its_token(monkeypatch):
    monkeypatch.setenv("CODE_RL_SANDBOX_TOKEN", "of-this-test")
    server, url = start_server(2)
    try:
        with a_box(url=url) as box:
            assert box.run("echo in").stdout == b"in\n"
        monkeypatch.setenv("CODE_RL_SANDBOX_TOKEN", "another")
        with pytest.raises(SandboxError), a_box(url=url):
            pass
    finally:
        end_server(server)


@pytest.mark.parametrize("place", ["this machine", "a server"])
def test_directories_that_a_task_expects_are_in_the_box(place):
    require_boxes("full")

    with a_box(writable=("/app", "/logs", "/tmp"), url=None if place == "this machine" else shared_server(4)) as box:
        box.write("/app/deep/in", b"1\n")
        result = box.run("cd /app && cat deep/in > out && mkdir /logs/more && echo 2 > /logs/more/log && ls /box")
        assert result.stdout == b"app\nlogs\ntmp\n"
        assert (box.read("/app/out"), box.read("/box/logs/more/log")) == (b"1\n", b"2\n")
        with pytest.raises(ConfigError):
            box.write("/etc/passwd", b"")


@pytest.mark.parametrize(
    "settings",
    [
        *({"writable": (path,)} for path in ("app", "/", "/usr", "/box", "/a/b")),
        *({"environment": each} for each in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}, {"A": "\ud800"})),
        {"url": "http://127.0.0.1:9", "readable": ("/opt",)},
    ],
)
def test_a_directory_or_a_variable_that_cannot_be_is_refused(settings):
    with pytest.raises(ConfigError), a_box(**settings):
        pass


HELD_PIPES = """
import array, socket
a, b = socket.socketpair()
for one in (a, b):
    rights = array.array("i", [1, 2, a.fileno(), b.fileno()])
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
print("done", flush=True)
"""


def test_pipes_that_lie_in_a_socket_keep_nobody_waiting(level):
    async def run():
        async with code_rl.open_box(level) as box, asyncio.timeout(60):
            await box.write("hold.py", HELD_PIPES.encode())
            return [await box.run("python3 hold.py", wall_s=3) for _ in range(3)]

    assert [(one.stdout, one.limit) for one in asyncio.run(run())] == [(b"done\n", None)] * 3


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.1, pytest.param(None, id="while it closes")])
def test_a_box_that_is_cancelled_while_it_opens_or_closes_leaves_no_process(level, wait_s):
    async def run():
        leave, opened = asyncio.Event(), asyncio.Event()

        async def hold():
            async with code_rl.open_box(level):
                opened.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        if wait_s is None:
            await opened.wait()
            leave.set()
        await asyncio.sleep(wait_s or 0)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding

    before = descendants()
    asyncio.run(run())
    until(lambda: descendants() <= before)


def test_an_environment_beyond_its_limit_is_refused():
    with refused("environment"), a_box(environment={"NAME": "x" * (1 << 16)}):
        pass
