"""The public files that tests and evidence read: `python -m tests.grading.corpus.public [SET …]` brings them into $CODE_RL_DATA, at pinned commits.

They are `public.toml` beside this file; without arguments all of them are brought.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from code_rl.data.fetch import Pinned, fetch

RAW = "https://raw.githubusercontent.com"


def public_files() -> dict[str, list[Pinned]]:
    """The files of each set."""
    sets = tomllib.loads(Path(__file__).with_name("public.toml").read_text())
    return {
        name: [
            Pinned(
                f"{RAW}/{told['repository']}/{told['commit']}/{path}",
                sha256,
                f"{told.get('folder', name)}/{told.get('as', path.rpartition('/')[2])}",
            )
            for path, sha256 in told["files"].items()
        ]
        for name, told in sets.items()
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or public_files():
        for file in public_files()[name]:
            print(fetch(file))
