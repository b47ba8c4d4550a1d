"""The verb `data`: the public files that tests, evidence and benchmarks read, from where their authors publish them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

import chz

from code_rl.config.setting import option
from code_rl.errors import CodeRLError, ConfigError
from code_rl.loading.fetch import fetch, public_files
from code_rl.problems.files import data_folder
from code_rl.settings import make_settings, suggestion


@chz.chz
class DataConfig:
    """Bring public files into $CODE_RL_DATA (default ~/.cache/code-rl/data), each at a pinned commit and checked against a known SHA-256.

    `code-rl data fetch` brings all of them, `code-rl data fetch humaneval leetcode` these, `code-rl data list` says what there is.
    Data sets of the Hugging Face hub are no part of this: `dataset=` and `benchmark=livecodebench` fetch them when they are used.
    """

    action: Literal["fetch", "list"] = option("list", "fetch, or list.")
    names: str | None = option(None, "Which sets, comma-separated or as words. None: all.")


def data_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl data`. Returns 0, or 1 where a file could not be had; the others are there then."""
    config = make_settings(DataConfig, given)
    known = public_files()
    names = list(known) if config.names is None else [name.strip() for name in config.names.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown public set {name!r}{suggestion(name, known)}; there are: {', '.join(known)}")
    print(f"in {data_folder()}:")
    missing = 0
    for file in (file for name in names for file in known[name]):
        if config.action == "list":
            print(f"  {file.kept_as}: {'here' if file.path.is_file() else 'not here'} ({file.url})")
            continue
        try:
            print(f"  {fetch(file).relative_to(data_folder())}", flush=True)
        except CodeRLError as error:
            missing += 1
            print(f"  {file.kept_as}: {error}", file=sys.stderr)
    return int(missing > 0)
