"""Names through the hub's real client, against a server of its protocol: pinned revisions, the cache without a network, clear refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.data.loading.hub_server import HubServer
from tests.data.loading.raw_rows import PRODUCT, SUM

OLD, NEW = "1" * 40, "2" * 40
CONFIGS = {"taco": ("train",), "lcbv5": ("train", "test"), "primeintellect": ("train",), "codeforces": ("test",)}
LISTED = [
    {"config_name": name, "data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in splits]}
    for name, splits in CONFIGS.items()
]
CARD = f"---\nlicense: mit\nconfigs: {json.dumps(LISTED)}\n---\n# A set\n"
FILES = [
    f"{name}/{split}-{shard:05}-of-00002" for name, splits in CONFIGS.items() for split in splits for shard in range(2)
]
SCRIPT = """
import json, sys
from code_rl.util.errors import CodeRLError
from code_rl.data import find_data, open_dataset
out = []
for setting in sys.argv[1:]:
    try:
        if setting.startswith("run:"):
            data = find_data(setting[4:], None, evaluates=True)
            out.append([str(data.train), {name: str(split) for name, split in data.test.items()}])
            continue
        dataset = open_dataset(setting)
        first = next(iter(dataset))
        out.append([str(dataset), first.id, first.statement, dataset.provenance()[0]])
    except CodeRLError as error:
        out.append([type(error).__name__, str(error), error.exit_code])
print(json.dumps(out))
"""
DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"


def write_commit(folder, statement, names):
    row = {"problem": statement, "solutions": json.dumps([SUM, PRODUCT]), "tests": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}  # fmt: skip
    for name in names:
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    for commit, statement in ((OLD, "Old."), (NEW, "New.")):
        write_commit(folder / commit, statement, FILES)
        (folder / commit / "README.md").write_text(CARD)
    write_commit(folder / "plain", "Plain.", ("train", "test"))
    whole = {NEW: folder / "plain"}
    repositories = {
        DEEPCODER: {OLD: folder / OLD, NEW: folder / NEW},
        "someone/else": {NEW: folder / NEW},
        "newfacade/LeetCodeDataset": whole,
        "likaixin/TACO-verified": whole,
    }
    with HubServer(repositories) as server:
        yield server


def ask(url, cache, *settings, **environment):
    given = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *settings], env=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answers(hub, tmp_path_factory):
    """All questions in one process: the client is slow to load."""
    cache = tmp_path_factory.mktemp("cache")
    questions = {
        "main": "deepcoder/taco",
        "pinned": f"deepcoder/taco@{OLD}",
        "hub id": "someone/else/lcbv5:train",
        "no revision": "deepcoder/taco@nowhere",
        "no repository": "nobody/nothing",
        "no split": "someone/else/taco:test",
        "unknown split": "deepcoder/taco:test",
        "deepcoder": "run:deepcoder",
        "code-r1": "run:code-r1",
    }
    online = dict(zip(questions, ask(hub.url, cache, *questions.values()), strict=True))
    offline = ask(
        "http://127.0.0.1:9",
        cache,
        "deepcoder/taco",
        f"deepcoder/taco@{OLD}",
        "someone/else/primeintellect",
        "other/set",
    )
    return online, offline


def test_a_name_means_the_main_branch_and_says_which_commit_that_was(answers):
    name, item_id, statement, provenance = answers[0]["main"]
    assert (name, item_id, statement) == (f"deepcoder/taco@{NEW[:12]}:train", "deepcoder/taco/train/0", "New.")
    assert provenance["revision"] == NEW
    assert provenance["licence"] == "mit"
    assert len(provenance["files"]) == 2


def test_a_pinned_revision_is_what_is_read(answers):
    assert answers[0]["pinned"][2] == "Old."


def test_any_hub_id_with_config_and_split_is_a_name(answers):
    assert answers[0]["hub id"][:2] == [f"someone/else/lcbv5@{NEW[:12]}:train", "someone/else/lcbv5/train/0"]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("no revision", "at revision 'nowhere'"),
        ("no repository", "refused dataset nobody/nothing at revision 'main'"),
        ("no split", "nothing for split 'test' of config taco"),
        ("unknown split", "the splits of deepcoder/taco are train"),
    ],
)
def test_what_the_hub_has_not_is_refused_by_name(answers, question, message):
    kind, text, code = answers[0][question]
    assert kind == "ConfigError"
    assert message in text
    assert code == 2


def test_without_a_network_the_cache_answers_for_what_it_holds(answers):
    main, pinned, _, _ = answers[1]
    assert main[2] == "New."
    assert pinned[2] == "Old."


def test_without_network_and_cache_one_line_says_what_to_do(answers):
    _, _, partial, absent = answers[1]
    for kind, _, code in (partial, absent):
        assert kind == "ConfigError"
        assert code == 2
    assert "hf download other/set --repo-type dataset --local-dir DIR" in absent[1]
    assert "give its files or folders as a path" in absent[1]


def test_a_mixture_is_its_training_sets_and_its_held_out_ones_by_name(answers):
    def named(*parts):
        return [f"{name}@{NEW[:12]}:{split}" for name, split in (part.split(":") for part in parts)]

    train, held_out = answers[0]["deepcoder"]
    assert train.split(" + ") == named(
        "deepcoder/primeintellect:train", "deepcoder/taco:train", "deepcoder/lcbv5:train"
    )
    codeforces, lcbv5 = named("deepcoder/codeforces:test", "deepcoder/lcbv5:test")
    assert held_out == {"codeforces": codeforces, "lcbv5": lcbv5}
    train, held_out = answers[0]["code-r1"]
    assert train.split(" + ") == named("leetcode:train", "taco-verified:train")
    assert held_out == {"leetcode": named("leetcode:test")[0]}
