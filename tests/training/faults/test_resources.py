"""Resources that a machine can lack: room on the disk, memory, descriptors, a directory that can be written, the data."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from code_rl.cli.main import main
from code_rl.engine.adapters import Adapter, write_peft
from code_rl.engine.local import EmbeddedService
from code_rl.util.errors import CheckpointError, ResourceError, describe_error, is_resource_error, with_resume_hint
from code_rl.util.files import JsonLines, read_lines, write_atomically
from tests.paths import ROOT
from tests.training.pipeline_support import small


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


@contextlib.contextmanager
def no_space(file: Path):
    with pytest.raises(OSError) as error:  # noqa: PT011 - its number says which
        yield
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(file))


def test_a_file_that_finds_no_room_is_named():
    with no_space(Path("/dev/full")):
        JsonLines(Path("/dev/full")).append({"step": 0})


def test_a_line_that_found_no_room_leaves_no_half_of_it_and_later_lines_are_whole(small_disk):
    lines = JsonLines(small_disk / "a.jsonl")
    lines.append({"step": 0, "text": "x" * 5000})
    fill(small_disk)
    with no_space(small_disk / "a.jsonl"):
        lines.append({"step": 1, "text": "y" * 50_000})
    kept = list(read_lines(small_disk / "a.jsonl"))
    assert (small_disk / "a.jsonl").read_bytes().endswith(b"\n")
    (small_disk / "filler").unlink()
    lines.append({"step": 2})
    lines.close()
    assert [record["step"] for record in read_lines(small_disk / "a.jsonl")] == [
        *(record["step"] for record in kept),
        2,
    ]


def test_a_file_is_replaced_whole_or_stays_as_it_was_on_a_full_disk(small_disk):
    write_atomically(small_disk / "a", "one")
    fill(small_disk)
    with no_space(small_disk / "a"):
        write_atomically(small_disk / "a", "two" * 5000)
    assert (small_disk / "a").read_text() == "one"


def test_an_adapter_that_finds_no_room_is_a_missing_resource(small_disk):
    adapter = Adapter("tiny", 8, 8.0, {"layer": (torch.zeros(8, 10_000), torch.zeros(16, 8))})
    with pytest.raises(OSError) as error:  # noqa: PT011 - its number says which
        write_peft(adapter, "tiny", small_disk)
    assert error.value.errno == errno.ENOSPC


def test_a_checkpoint_without_room_is_refused_before_a_byte_is_written_and_the_one_before_stays(small_disk):
    with contextlib.closing(EmbeddedService(device="cpu", state_dir=small_disk)) as service:
        trainer = service.create_lora_training_client("tiny", rank=8, seed=0).result()
        with pytest.raises(CheckpointError):
            trainer.save_state("a").result()
    assert list(small_disk.iterdir()) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A client with a checkpoint, and its path."""
    folder = tmp_path_factory.mktemp("state")
    with contextlib.closing(EmbeddedService(device="cpu", state_dir=folder)) as service:
        trainer = service.create_lora_training_client("tiny", rank=1, seed=0).result()
        yield trainer, Path(trainer.save_state("a").result().path)


@given(where=st.integers(1, 40))
def test_a_checkpoint_whose_disk_fails_within_leaves_the_one_before(saved, where):
    trainer, path = saved
    whole = path.read_bytes()
    assert len(whole) > 40_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (where * 1000, before[1]))
    try:
        with pytest.raises(CheckpointError):
            trainer.save_state("a", overwrite=True).result()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/x/y"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nmore"),
    ],
)
def test_a_missing_resource_becomes_one_line_with_the_remedy(error):
    found = with_resume_hint(error, "go on")
    assert isinstance(found, ResourceError)
    assert "\n" not in str(found)
    assert str(found).endswith("go on")
    assert describe_error(error) in str(found)
    assert is_resource_error(error)


def train(*words: str, limit: str = "pass") -> subprocess.CompletedProcess[str]:
    code = f"import resource, sys; {limit}; from code_rl.cli.main import main; sys.exit(main(['train', *sys.argv[1:]]))"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=200)


def runs_or_says_on_one_line(done: subprocess.CompletedProcess[str], said: str) -> None:
    if done.returncode:
        assert done.returncode in (1, 2), done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "amount", "said"),
    [
        *(("RLIMIT_AS", megabytes << 20, "memory") for megabytes in (300, 600, 900, 2400, 3600)),
        *(("RLIMIT_NOFILE", descriptors, "") for descriptors in (12, 16, 20, 28, 40, 64)),
    ],
)
def test_a_process_with_too_little_of_a_resource_says_so_on_one_line_or_runs(tmp_path, limit, amount, said):
    words = [f"{name}={value}" for name, value in small(tmp_path / "run", max_steps=1).items()]
    limited = f"resource.setrlimit(resource.{limit}, ({amount}, {amount}))"
    runs_or_says_on_one_line(train(*words, limit=limited), said)


def test_a_directory_that_cannot_be_written_is_refused_at_the_start(capsys):
    where = "/proc/1/run" if os.geteuid() == 0 else "/run-of-nobody"
    assert main(["train", *(f"{name}={value}" for name, value in small(Path(where)).items())]) == 2
    said = capsys.readouterr().err
    assert f"log_path={where}" in said
    assert said.count("\n") == 1


def test_a_data_file_that_is_gone_is_refused_by_name_and_nothing_is_made(tmp_path, capsys):
    words = {**small(tmp_path / "run", max_steps=1), "dataset": str(tmp_path / "gone.jsonl")}
    assert main(["train", *(f"{name}={value}" for name, value in words.items())]) == 2
    said = capsys.readouterr().err
    assert "gone.jsonl" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
