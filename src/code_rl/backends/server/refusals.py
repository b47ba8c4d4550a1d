"""What the server answers when it does not do what was asked: one exception with the status that makes the SDK react rightly.

The SDK retries 408, 409, 429 and 5xx, and gives up at once on any other 4xx. 410 means that what was asked about is gone: a
sample is then submitted again, a training request fails.
"""

from __future__ import annotations

from code_rl.errors import CheckpointError, InputError

USER = "user"
SERVER = "server"


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the server
    """An HTTP answer other than success. `retry_after_s` tells the client when to come back."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        self.retry_after_s = retry_after_s


def bad(message: str) -> Refusal:
    """The request cannot be served as it is: 400, not retried."""
    return Refusal(400, message)


def unknown(what: str) -> Refusal:
    """Something named in the request does not exist: 404, not retried."""
    return Refusal(404, f"{what} is not known to this server")


def gone(message: str) -> Refusal:
    """It existed and no longer does: 410."""
    return Refusal(410, message)


def busy(message: str) -> Refusal:
    """A queue is full: 429, retried by the SDK with growing pauses."""
    return Refusal(429, message, retry_after_s=1)


def category(error: BaseException) -> str:
    """Whose mistake a failed operation was, as the SDK's `RequestErrorCategory` names it."""
    return USER if isinstance(error, InputError | CheckpointError | Refusal) else SERVER
