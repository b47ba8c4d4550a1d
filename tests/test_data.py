"""Public files: where they are kept, and that the copies here equal the published ones."""

from __future__ import annotations

import pytest

from code_rl.util.data_files import data_folder, file_sha256
from tests.grading.corpus.public import public_files
from tests.grading.corpus.rooms import data_file


def test_the_data_folder_is_below_the_cache_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CODE_RL_DATA", raising=False)
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path))
    assert data_folder() == tmp_path / "data"


@pytest.mark.parametrize("name", public_files())
def test_local_copies_are_what_was_published(name):
    for file in public_files()[name]:
        assert file_sha256(data_file(file.kept_as)) == file.sha256
