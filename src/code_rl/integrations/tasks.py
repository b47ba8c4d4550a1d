"""A box for a task of Harbor's layout, whose image is plain: `environment/Dockerfile` begins from a
Debian or Python image and installs nothing."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from code_rl.grading.sandbox import Box, open_box
from code_rl.util.errors import ConfigError

# Tasks and their tests write there.
DIRECTORIES = tuple(
    f"/{name}" for name in ["app", "home", "logs", "oracle", "root", "solution", "tests", "tmp"]
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
        """The directories that a box of this image has."""
        own = [f"/{PurePosixPath(self.workdir).parts[1]}"] if self.workdir != "/" else []
        return tuple(dict.fromkeys((*DIRECTORIES, *own)))


def read_image(folder: Path) -> PlainImage:
    """Read `folder/Dockerfile` (an absent one is plain). Raises ConfigError, naming the line, for
    an image that a box cannot replace."""
    path = folder / "Dockerfile"
    image = PlainImage()
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        words = shlex.split(line, comments=True)
        if words:
            image = _with(image, words[0].upper(), words[1:], folder, f"{path}, line {number}")
    return image


def _with(image: PlainImage, kind: str, words: list[str], folder: Path, where: str) -> PlainImage:
    known = dict(image.environment)
    match kind, words:
        case "FROM", [base, *_] if base.split("/")[-1].split(":")[0] in _PLAIN:
            return image
        case "WORKDIR", [workdir]:
            whole = PurePosixPath(image.workdir, workdir)
            return PlainImage(str(whole), image.environment, image.files)
        case "ENV", [name, value] if "=" not in name:
            known[name] = value
            return PlainImage(image.workdir, tuple(known.items()), image.files)
        case "ENV", [*pairs] if all("=" in pair for pair in pairs):
            known |= dict(pair.split("=", 1) for pair in pairs)
            return PlainImage(image.workdir, tuple(known.items()), image.files)
        case "COPY", [*sources, target] if sources and not sources[0].startswith("--"):
            root = PurePosixPath(image.workdir, target)
            into = target.endswith(("/", ".")) or len(sources) > 1
            found = [pair for name in sources for pair in _copied(folder, name, root, into)]
            return PlainImage(image.workdir, image.environment, (*image.files, *found))
        case _ if kind in _WITHOUT_EFFECT:
            return image
    raise ConfigError(
        f"{where}: {kind} {' '.join(words)[:60]}: a box has this machine's programs only; it takes "
        f"FROM {'|'.join(_PLAIN)}, WORKDIR, ENV and COPY"
    )


def _copied(folder: Path, name: str, target: PurePosixPath, into: bool) -> list[tuple[Path, str]]:
    source = folder / name.lstrip("/")
    if source.is_dir():
        return [(path, str(target / inner)) for path, inner in files_below(source, folder)]
    return [(_within(source, folder), str(target / source.name if into else target))]


def files_below(source: Path, folder: Path) -> list[tuple[Path, PurePosixPath]]:
    """Return the files below `source`, with their paths from there. Raises ConfigError for a link
    out of `folder`."""
    found = sorted(path for path in source.rglob("*") if path.is_file())
    inner = (PurePosixPath(path.relative_to(source).as_posix()) for path in found)
    return [(_within(path, folder), name) for path, name in zip(found, inner, strict=True)]


def _within(path: Path, folder: Path) -> Path:
    whole = path.resolve()
    if not whole.is_relative_to(folder.resolve()) or not whole.is_file():
        raise ConfigError(f"{path} is no file below {folder}")
    return whole


@contextlib.asynccontextmanager
async def open_task_box(image: PlainImage, url: str | None = None) -> AsyncIterator[Box]:
    """Open a box with the image's files and variables; `url` as for `open_box`."""
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
    """Run a shell command in a directory, with further variables, for at most `seconds`."""
    place = shlex.quote(workdir)
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    result = await box.run(
        f"{''.join(exports)}mkdir -p {place} && cd {place} || exit 1\n{command}",
        cpu_s=seconds,
        wall_s=seconds,
        memory_mb=MEMORY_MB,
        output_bytes=STREAM_BYTES,
        processes=PROCESSES,
    )
    stdout, stderr = (data.decode("utf-8", "replace") for data in (result.stdout, result.stderr))
    if result.limit:
        stderr += f"\nstopped at its limit of {result.limit}"
    return TaskOutput(result.exit_code, stdout, stderr, result.limit)
