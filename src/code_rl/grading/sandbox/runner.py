"""Runs one test of one program in its own process. Standard library only.

The embedded sandbox calls these functions in a newly forked, confined child. They can also be sent
to a remote server as a file, together with `grading/values.py`. Both entry points end the process.

A script gets the environment of `python solution.py`: a `__main__` module, the real standard
streams, CPython's exit codes, `atexit` handlers and threads joined at exit. A called function is
found at module level or on `Solution()`. Its value is written to a private file descriptor as one
length-prefixed record, so that printed text cannot be mistaken for it.
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import builtins
import contextlib
import gc
import linecache
import os
import random
import struct
import sys
import threading
import time
import traceback
import warnings
import weakref
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, ModuleType
from typing import Any, NoReturn

import code_rl.grading.values as values

# The name that programs see in their private file system
FILENAME = "/tmp/solution.py"  # noqa: S108
CALL_MODULE = "solution"
VALUE_HEADER = struct.Struct("<Q")
RECURSION_LIMIT = 1000
RAISED = "raised"
globals()["__builtins__"] = vars(
    builtins
).copy()  # for the functions of this file: a program may delete names
_exit, _cpu_ns = os._exit, time.process_time_ns
_UNFLUSHED = 120
_SEED_BYTES = 1 << 16
_LAST_WORDS = (GeneratorType, CoroutineType, AsyncGeneratorType, weakref.ReferenceType)


class Program:
    """A compiled submission: preamble, program and setup, run in this order in one namespace."""

    def __init__(
        self, code: str, fn_name: str | None = None, preamble: str = "", setup: str = ""
    ) -> None:
        """Compile; nothing runs. `fn_name` None means a script. Raises any exception of CPython's
        compiler (SyntaxError, ValueError, RecursionError, MemoryError, ...)."""
        self.fn_name = fn_name
        self.module: ModuleType | None = None
        code = code.removeprefix("\ufeff")  # a byte order mark is not part of a file's text
        self.source = code
        named = ((preamble, "<preamble>"), (code, FILENAME), (setup, "<setup>"))
        # The compiler's warnings would quote the program on our own stderr
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.parts: tuple[CodeType, ...] = tuple(
                compile(text, name, "exec", dont_inherit=True)
                for text, name in named
                if text or name == FILENAME
            )
        self.draws = "random" in code
        self._digest = _digest(code.encode("utf-8", "surrogatepass"))

    def seed_random(self, given: bytes) -> None:
        """Seed the generators that the program may use (`random`, and NumPy's if it is loaded),
        from its source and input. A seed from the test's number would reveal which test is running.
        The same source and input give the same seed in every run.

        A program that hides its use of them finds them in their initial state.
        """
        seed = self._digest * 1_000_003 + _digest(given)
        random.seed(seed)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed(seed % (1 << 32))
            # default_rng() reads this first
            numpy_random.bit_generator.randbits = random.getrandbits


def run_script(program: Program, file: str = FILENAME) -> NoReturn:
    """Run `program`, whose source is in `file`, as `__main__` on file descriptors 0, 1 and 2. Then
    end the process with CPython's exit code. Never returns."""
    # Only here: the process that waits for this one must not be open to signals
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    code = 1
    try:
        if program.module is None:
            prepare(program, depth(), file)
        if program.draws:
            program.seed_random(_beginning_of_input())
        written: Any = sys.__stdout__.buffer  # type: ignore[union-attr]
        code = run(program, program.module)  # type: ignore[arg-type]
        code = end(program, program.module, code)  # type: ignore[arg-type]
        written.flush()  # the program may have detached the stream and dropped it with text inside
    finally:
        _exit(code)  # whatever happens here, our side does not see it


def run_call(program: Program, arguments: bytes, value_fd: int, file: str = FILENAME) -> NoReturn:
    """Define the program, call its function with `arguments` (JSON `[args, kwargs]`, or with a
    third item, `executor.case_bytes`), write the encoded value to `value_fd`, and end the process.
    Never returns.

    The exit code is 0 only if a value was written.
    """
    # Only here: the process that waits for this one must not be open to signals
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    ended = 1
    try:
        module = program.module or prepare(program, depth(), file)
        if program.draws:
            program.seed_random(arguments)
        code = run(program, module, exit_is_error=True)
        if code == 0:
            code = _call(program, module, arguments, value_fd)
        ended = _flush(code)
    finally:
        _exit(ended)


def _digest(data: bytes) -> int:
    """Return a digest modulo a prime, which mixes all of the data; hashlib would map a megabyte of
    libcrypto into every test."""
    return int.from_bytes(data, "big") % ((1 << 61) - 1)


def _beginning_of_input() -> bytes:
    """Return the first 64 KiB of stdin without moving its position; none if it is not a file."""
    try:
        return os.pread(0, _SEED_BYTES, 0)
    except OSError:  # a pipe, or closed
        return b""


def decode_value(record: bytes) -> bytes | None:
    """Return the payload of exactly one record of `run_call`, or None for anything else (nothing,
    half a record, more than one)."""
    if len(record) < VALUE_HEADER.size:
        return None
    (length,) = VALUE_HEADER.unpack_from(record)
    payload = record[VALUE_HEADER.size :]
    return payload if len(payload) == length else None


def prepare(program: Program, frames: int, file: str = FILENAME) -> ModuleType:
    """Do the work that all tests of a submission share, once before the forks: make the program's
    module, and set `sys.modules`, `sys.argv`, `sys.path` and limits as it expects them. Return the
    module; the program does not run yet.

    `frames`: the number of frames above the program's own, which its recursion limit leaves out.
    `file`: the path of its source.
    """
    gc.freeze()  # before the module is made, which is collected when the program ends
    name = "__main__" if program.fn_name is None else CALL_MODULE
    module = program.module = ModuleType(name)
    module.__dict__.update(__file__=file, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = sys.modules[name] = module
    sys.argv = [file]
    sys.path.insert(0, os.path.dirname(file))
    linecache.cache[FILENAME] = (
        len(program.source),
        None,
        program.source.splitlines(True),
        FILENAME,
    )
    sys.set_int_max_str_digits(0)
    # The frames of this file and of its callers do not count against the program's recursion limit.
    sys.setrecursionlimit(RECURSION_LIMIT + frames)
    gc.enable()
    return module


def depth() -> int:
    """Return the number of frames on the stack, the caller's included."""
    count, frame = 0, sys._getframe().f_back
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def run(program: Program, module: ModuleType, exit_is_error: bool = False) -> int:
    """Execute the program in `module` and return its exit code; an uncaught exception is shown on
    stderr. With `exit_is_error`, SystemExit is an error, whatever its code."""
    try:
        for part in program.parts:
            exec(part, module.__dict__)  # noqa: S102 - running the program is the purpose
    except SystemExit as leaving:
        if exit_is_error:
            return _complain("the program exited before its function was called")
        return _exit_code(leaving)
    except BaseException as error:  # noqa: BLE001 - whatever the program raised is its result
        return _report(error)
    return 0


def _call(program: Program, module: ModuleType, arguments: bytes, value_fd: int) -> int:
    """Call the function and write its value, or the exception if the call catches it, to
    `value_fd`. Return the exit code, which is not 0, with the reason on stderr, if no value was
    written."""
    try:
        args, kwargs, *rest = values.loads(
            arguments, len(arguments), module.__dict__, -values.ENVELOPE
        )
        calls = rest[0].get("batch") if rest else None
        form = _form(program, module, args, kwargs, *rest) if calls is None else None
    except SystemExit:
        return _complain("the function exited instead of returning")
    except values.ValueCodecError as error:
        return _complain(f"the returned value cannot be read: {error}")
    except BaseException as error:  # noqa: BLE001
        return _report(error)
    try:
        text = values.text_of(form) if calls is None else _batch(program, module, calls)
        payload = text.encode("utf-8")
        write_all(value_fd, VALUE_HEADER.pack(len(payload)) + payload)
        os.close(value_fd)
    except OSError as error:
        return _complain(f"the value could not be sent: {error}")
    except BaseException as error:  # noqa: BLE001
        return _report(error)
    return 0


def _form(program: Program, module: ModuleType, args: Any, kwargs: Any, more: Any = None) -> Any:
    """Find the function of one call, and return the encoded result. `more` is the third item of the
    call's message (None: it has none). Exceptions of the program pass, ValueCodecError too."""
    more = more or {}
    function = _find(module, more.get("fn_name") or str(program.fn_name))
    return _result(function, args, kwargs, more)


def _batch(program: Program, module: ModuleType, calls: list[list[Any]]) -> str:
    """Make calls one after the other, up to the first without a value. Return a line for each
    before it: nanoseconds of CPU time, and the encoded value. `batches` reads them. Exceptions of
    the program end the batch and are not raised."""
    lines = []
    for call in calls:
        began = _cpu_ns()
        try:
            if program.draws:  # as if the call were made alone
                program.seed_random(values.dumps(call, -values.ENVELOPE).encode())
            text = values.text_of(_form(program, module, *call))
        except BaseException:  # noqa: BLE001 - this call is made again, alone
            break
        lines.append(f"{_cpu_ns() - began} {text}")
    return "\n".join(lines)


def _result(function: Any, args: Any, kwargs: Any, more: Any) -> Any:
    """Return the encoded result of the call: its value, the values of a sequence of calls, or its
    exception if `more` has `catch`. Other exceptions of the program pass, as do SystemExit and
    MemoryError."""
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        if not more.get("catch") or isinstance(error, MemoryError):
            raise
        return {values.TAG: RAISED, "items": values.class_names(error)}
    if "calls" not in more:
        return values.encode(value)
    forms = [None]
    for name, given in more["calls"]:
        # At once, since the object may change its value later
        forms.append(values.encode(getattr(value, name)(*given)))
    return forms


def _find(module: ModuleType, name: str) -> Any:
    """Return the function at module level or on a new `Solution()`; the program's own wins over an
    import. Raises NameError if there is neither."""
    found = module.__dict__.get(name)
    solution: Any = module.__dict__.get("Solution")
    is_method = isinstance(solution, type) and hasattr(solution, name)
    # `from heapq import *` defines a `merge`, which is not the program's solution of a problem of
    # that name.
    if callable(found) and (not is_method or getattr(found, "__module__", None) == module.__name__):
        return found
    if is_method:
        return getattr(solution(), name)
    raise NameError(f"no function {name!r} at module level or on class Solution")


def end(program: Program, module: ModuleType, code: int) -> int:
    """Do CPython's exit steps in order: join threads, run atexit handlers, flush, drop the main
    module. Return the exit code, `code` unless a step changes it. Exceptions of the program are
    shown, not raised.

    A remaining reference to the module would keep its finalizers from seeing all of it, so no
    caller may hold one.
    """
    try:
        if _thread._count() or threading._threading_atexits:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException as error:  # noqa: BLE001
        _report(error)
    code = _flush(code)
    # Remaining threads would find their names gone; CPython stops them.
    if not _thread._count() and _has_last_words():
        del module
        _drop(program)
    return code


def _has_last_words() -> bool:
    """Return True if an object of the program acts when it is dropped: generators, files,
    finalizers, callbacks of weak references."""
    for made in gc.get_objects():  # objects older than the program are frozen and skipped
        kind = type(made)
        if kind in _LAST_WORDS or issubclass(kind, _io._IOBase):
            return True
        if issubclass(kind, type) and "__del__" in type.__dict__["__dict__"].__get__(made):
            return True
    return False


def _drop(program: Program) -> None:
    """Drop the main module and all its objects, so that their finalizers run; none of our objects
    may refer to it. `program.module` is None afterwards."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    _flush_files()
    held: Any = weakref.ref(program.module)
    program.module = None
    for name in ("__main__", CALL_MODULE):
        sys.modules.pop(name, None)
    gc.collect()
    if held() is not None:
        _clear(held().__dict__)
    # CPython also ignores errors of objects dropped at exit
    with contextlib.suppress(BaseException):
        sys.stdout.flush()  # type: ignore[union-attr]


def _flush_files() -> None:
    """Flush the program's open files, the last opened first: the collector may close an underlying
    file before the file above it."""
    for held in reversed(gc.get_objects()):
        # io.IOBase would ask its abstract base class in Python; this test is the same.
        if issubclass(type(held), _io._IOBase) and held is not sys.stdout:
            with contextlib.suppress(BaseException):
                held.flush()


def _clear(names: dict[str, Any]) -> None:
    """Drop the names of a main module that is still referenced, as the interpreter does: names with
    a single underscore first."""
    for name in sorted(names, key=lambda name: name[:1] != "_"):
        if name != "__builtins__":
            names[name] = None
    gc.collect()


def _flush(code: int) -> int:
    """Flush the streams as the interpreter does at exit; return the exit code that results: `code`,
    or 120 in place of 0 if the text cannot be written. Never raises."""
    out, err = getattr(sys, "stdout", None), getattr(sys, "stderr", None)
    try:
        if out is not None and not _closed(out):
            out.flush()
    except BaseException as error:  # noqa: BLE001
        _report(error)
        code = code or _UNFLUSHED
    try:
        if err is not None and not _closed(err):
            err.flush()
    except BaseException:  # noqa: BLE001
        code = code or _UNFLUSHED
    if sys.__stdout__ is not out:
        # stdout was replaced; its errors are those of any dropped file
        with contextlib.suppress(BaseException):
            sys.__stdout__.flush()  # type: ignore[union-attr]
    return code


def _closed(stream: Any) -> bool:
    """Return True if a stream says that it is closed; a detached one cannot say."""
    try:
        return bool(getattr(stream, "closed", False))
    except Exception:  # noqa: BLE001
        return False


def _exit_code(leaving: SystemExit) -> int:
    """Return the exit code of a SystemExit, as CPython does: None is 0, an integer its low byte,
    anything else is printed on stderr and 1."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    # CPython also exits with 1 if the message cannot be printed
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """Show an uncaught exception as CPython does, by the program's `sys.excepthook` and without the
    frames of this file. Return the exit code, 130 for KeyboardInterrupt, else 1. Never raises."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        if sys.excepthook is sys.__excepthook__:
            sys.stderr.write("".join(traceback.format_exception(type(error), error, trace)))
        else:
            sys.excepthook(type(error), error, trace)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException:  # noqa: BLE001
        _say(type.__getattribute__(type(error), "__name__"))
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _complain(message: str) -> int:
    """Write a message of ours to stderr, after the program's own text, and return exit code 1."""
    # The message below is written to the descriptor itself
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    _say(message)
    return 1


def _say(message: str) -> None:
    """Write a line to descriptor 2 itself, whatever the program made of `sys.stderr`. Failures are
    ignored."""
    with contextlib.suppress(OSError):
        os.write(2, (message + "\n").encode("utf-8", "backslashreplace"))


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to a descriptor, in several calls if needed. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
