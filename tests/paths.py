"""Where things are."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_source(folder: Path) -> Path:
    """A copy of `src` in `folder`, to be changed, without its large files. Returns the package in it."""
    ignored = shutil.ignore_patterns("__pycache__", "tiny", "corpus", "assets")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    return folder / "src" / "code_rl"
