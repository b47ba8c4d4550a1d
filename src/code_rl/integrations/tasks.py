"""A box for a task of Harbor's layout, whose image is plain: `environment/Dockerfile` begins from a
Debian or Python image and installs nothing."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from code_rl.grading.sandbox import Box, open_box
from code_rl.util.errors import ConfigError

# Tasks and their tests write there: paths in a box, never of this machine.
DIRECTORIES = (
    *("/app", "/home", "/logs", "/oracle", "/root", "/solution", "/tests"),
    "/tmp",  # noqa: S108
)
LOGS = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
_PLAIN = ("python", "debian", "ubuntu")
_WITHOUT_EFFECT = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "SHELL", "STOPSIGNAL")
DISK_MB, MEMORY_MB, STREAM_BYTES, PROCESSES = 1024, 2048, 16 << 20, 256


@dataclass(frozen=True, slots=True)
class PlainImage:
    """The parts of an image that a box can have: working directory, variables, and the files (each
    with its path in the box)."""

    workdir: str = "/root"
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[Path, str], ...] = ()

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories that a box of this image has: the usual ones, and the first part of its
        own paths, each once."""
        paths = (self.workdir, *(path for _, path in self.files))
        own = (f"/{PurePosixPath(path).parts[1]}" for path in paths)
        return tuple(dict.fromkeys((*DIRECTORIES, *own)))


def read_image(folder: Path) -> PlainImage:
    """Return the image of `folder/Dockerfile` (an absent one is plain). Files of COPY are listed,
    not read. Raises ConfigError, naming the line, for an image that a box cannot replace."""
    path = folder / "Dockerfile"
    image = PlainImage()
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            kind, *words = shlex.split(line)
            if "$" in line:
                raise ConfigError("a box knows no variables")
            image = _apply_instruction(image, kind.upper(), words, folder)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{path}, line {number}: {line.strip()[:80]}: {error}") from error
    return image


def _apply_instruction(image: PlainImage, kind: str, words: list[str], folder: Path) -> PlainImage:
    """Return the image after one instruction of a Dockerfile, `kind` in capitals; `image` is not
    changed. Raises ConfigError if a box cannot follow it."""
    match kind, [word for word in words if kind != "FROM" or not word.startswith("--platform=")]:
        case "FROM", [base, *_] if re.split("[:@]", base.split("/")[-1])[0] in _PLAIN:
            return image
        case "WORKDIR", [workdir]:
            return replace(image, workdir=_own(image, workdir))
        case "ENV", [name, value] if "=" not in name:
            return replace(image, environment=(*image.environment, (name, value)))
        case "ENV", [*pairs] if all("=" in pair for pair in pairs):
            given = (pair.partition("=") for pair in pairs)
            known = ((name, value) for name, _, value in given)
            return replace(image, environment=(*image.environment, *known))
        case "COPY", [*sources, target] if sources and not sources[0].startswith("--"):
            root = PurePosixPath(_own(image, target))
            into = target.endswith(("/", ".")) or len(sources) > 1 or str(root) == image.workdir
            found = [pair for name in sources for pair in _copied(folder, name, root, into)]
            return replace(image, files=(*image.files, *found))
        case _ if kind in _WITHOUT_EFFECT:
            return image
    raise ConfigError(
        "a box has this machine's programs only; it takes "
        f"FROM {'|'.join(_PLAIN)}, WORKDIR, ENV and COPY"
    )


def _own(image: PlainImage, path: str) -> str:
    """Return the whole path in the box, relative to the working directory. Raises ConfigError if it
    has `..`, or is not in a directory of the box's own."""
    whole = PurePosixPath(image.workdir, path)
    if ".." in whole.parts or "/" + "".join(whole.parts[1:2]) in Box.TAKEN:
        raise ConfigError(f"{whole} is not in a directory that a box can have, such as /app")
    return str(whole)


def _copied(folder: Path, name: str, target: PurePosixPath, into: bool) -> list[tuple[Path, str]]:
    """Return the files that COPY takes from `folder`, with their paths in the box. `into` means
    that the target is a directory. Raises ConfigError for a missing file, and for one outside
    `folder`."""
    source = folder / name.lstrip("/")
    if source.is_dir():
        return [(path, str(target / inner)) for path, inner in files_below(source, folder)]
    into = into or str(target) in DIRECTORIES
    return [(_within(source, folder), str(target / source.name if into else target))]


def files_below(source: Path, folder: Path) -> list[tuple[Path, PurePosixPath]]:
    """Return the files below the directory `source`, sorted, with their paths from there. Raises
    ConfigError for a link out of `folder`."""
    found = sorted(path for path in source.rglob("*") if path.is_file())
    inner = (PurePosixPath(path.relative_to(source).as_posix()) for path in found)
    return [(_within(path, folder), name) for path, name in zip(found, inner, strict=True)]


def _within(path: Path, folder: Path) -> Path:
    """Return the file without links. Raises ConfigError if it is missing or outside `folder`."""
    whole = path.resolve()
    if not whole.is_relative_to(folder.resolve()) or not whole.is_file():
        raise ConfigError(f"{path} is no file below {folder}")
    return whole


@contextlib.asynccontextmanager
async def open_task_box(image: PlainImage, url: str | None = None) -> AsyncIterator[Box]:
    """Open a box with the image's files and variables, and directories for logs; it is closed at
    the block's end. `url` is a `code-rl sandbox` (None: this machine). Raises ConfigError,
    IsolationError or SandboxError as `open_box` does, and OSError for a file that cannot be
    read."""
    async with open_box(
        disk_mb=DISK_MB, environment=dict(image.environment), writable=image.directories, url=url
    ) as box:
        for source, target in image.files:
            await box.write(target, source.read_bytes())
        await box.run(f"mkdir -p {' '.join(LOGS)}")
        yield box


class TaskOutput(NamedTuple):
    """The end of a command; the limit that ended it, if one did, is also the last line of
    `stderr`."""

    exit_code: int
    stdout: str
    stderr: str
    limit: str | None


async def run_in(
    box: Box, command: str, workdir: str, seconds: float, environment: Mapping[str, str]
) -> TaskOutput:
    """Run a shell command in a directory, which is made if it is missing, with further variables,
    for at most `seconds` (of CPU and of wall time). A command that a box cannot take has exit code
    126. Raises SandboxError if the box has ended."""
    place = shlex.quote(workdir)
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    text = f"{''.join(exports)}mkdir -p {place} && cd {place} || exit 1\n{command}"
    try:
        result = await box.run(
            text.encode("utf-8", "replace").decode(),
            cpu_s=seconds,
            wall_s=seconds,
            memory_mb=MEMORY_MB,
            output_bytes=STREAM_BYTES,
            processes=PROCESSES,
        )
    except ConfigError as error:  # it is too long, or has NUL
        return TaskOutput(126, "", str(error), None)
    stdout, stderr = (data.decode("utf-8", "replace") for data in (result.stdout, result.stderr))
    if result.limit:
        stderr += f"\nstopped at its limit of {result.limit}"
    return TaskOutput(result.exit_code, stdout, stderr, result.limit)
