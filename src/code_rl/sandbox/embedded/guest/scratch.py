"""Working directories where no private file system can be mounted: made for one submission, removed whatever it left in them."""

from __future__ import annotations

import contextlib
import os
import signal


def make_room(base: str, number: int, uid: int | None) -> str:
    """In the zygote: where worker `number` will make its directories; nobody else can enter."""
    path = f"{base}/{number}"
    os.mkdir(path, 0o700)
    if uid is not None:
        os.chmod(base, 0o711)  # noqa: S103 - to be passed through, not looked at
        os.chown(path, uid, uid)
    return path


def make(base: str) -> str:
    """A new directory under `base` that only this user can enter, with a name that nobody can guess."""
    path = f"{base}/{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    return path


def link_packages(base: str, packages: tuple[tuple[str, str], ...]) -> str:
    """A directory of links to the packages that programs may import, so that no other installed package is beside them."""
    directory = f"{base}/packages"
    os.mkdir(directory, 0o755)
    for name, path in packages:
        os.symlink(path, f"{directory}/{name}")
    return directory


def remove(path: str, expected: str = "") -> None:
    """Remove the directory. If more is in it than the file `expected`, rm(1) does it, which copes with any depth; modes are repaired first if need be."""
    try:
        if expected:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}/{expected}")
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        # Rarely needed, and their libraries would be mapped into every test.
        import shutil
        import subprocess

        handler = signal.getsignal(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            tool = shutil.which(command[0]) or f"/bin/{command[0]}"
            subprocess.run([tool, *command[1:], "--", path], check=False, stderr=subprocess.DEVNULL)
            if not os.path.exists(path):
                break
        signal.signal(signal.SIGCHLD, handler)
