"""`code-rl data`: public files from where their authors publish them, or by name not at all."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from code_rl.cli import main
from code_rl.loading import fetch as fetching
from code_rl.loading.fetch import public_files
from code_rl.problems.files import data_folder, file_sha256
from tests.corpus.rooms import DATA

SETS = """
[one]
repository = "owner/one"
commit = "c1"
licence = "MIT"
files."data/rows.jsonl" = "{rows}"
[two]
repository = "owner/two"
commit = "c2"
licence = "MIT"
folder = "elsewhere"
as = "named.json"
files."gone.json" = "{rows}"
"""


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server of `owner/one` at `c1`, and a table of sets that names it."""
    rows = tmp_path / "web" / "owner" / "one" / "c1" / "data" / "rows.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("{}\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    table = tmp_path / "public.toml"
    table.write_text(SETS.format(rows=hashlib.sha256(b"{}\n").hexdigest()))
    monkeypatch.setattr(fetching, "PUBLIC", table)
    monkeypatch.setattr(fetching, "RAW", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("CODE_RL_DATA", str(tmp_path / "data"))
    yield rows
    server.shutdown()


def test_named_sets_are_brought_once_into_the_data_folder(published, tmp_path, capsys):
    assert main(["data", "fetch", "one"]) == 0
    kept = tmp_path / "data" / "one" / "rows.jsonl"
    assert kept.read_text() == "{}\n"
    published.unlink()
    assert main(["data", "fetch", "one"]) == 0
    assert main(["data", "list"]) == 0
    said = capsys.readouterr().out
    assert "one/rows.jsonl: here" in said
    assert "elsewhere/named.json: not here" in said


def test_what_cannot_be_had_is_named_and_the_others_are_brought(published, tmp_path, capsys):
    assert main(["data", "fetch"]) == 1
    assert (tmp_path / "data" / "one" / "rows.jsonl").is_file()
    said = capsys.readouterr().err
    assert "elsewhere/named.json: " in said
    assert f"bring the file to {tmp_path / 'data' / 'elsewhere' / 'named.json'} yourself" in said
    assert "data=PATH" not in said, "a setting that this verb has not"


def test_a_file_of_another_content_is_neither_kept_nor_used(published, tmp_path, capsys):
    published.write_text("[]\n")
    assert main(["data", "fetch", "one"]) == 1
    assert "has SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "data" / "one" / "rows.jsonl").exists()
    (tmp_path / "data" / "one" / "rows.jsonl").write_text("[]\n")
    assert main(["data", "fetch", "one"]) == 1
    assert "move it away, or set CODE_RL_DATA" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["fetch", "won"], ["bring"], ["fetch", "one", "names=two"]])
def test_bad_words_are_refused(published, words, capsys):
    assert main(["data", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_data_folder_is_below_the_cache_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CODE_RL_DATA", raising=False)
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path))
    assert data_folder() == tmp_path / "data"


@pytest.mark.parametrize("name", public_files())
def test_local_copies_are_what_was_published(name):
    """The files that other tests read here have the hashes that `fetch` asks for."""
    for file in public_files()[name]:
        found = [path for folder in DATA if (path := folder / file.kept_as).is_file()]
        if not found:
            pytest.skip(f"{file.kept_as} is not in $CODE_RL_DATA, which `code-rl data fetch` fills")
        assert file_sha256(found[0]) == file.sha256
