"""A checkpoint from a Tinker service onto this machine: restored, exported by the service, fetched file by file."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from typing import Any

from code_rl.backends.places import Place
from code_rl.backends.remote import Link
from code_rl.errors import BackendError, ConfigError

logger = logging.getLogger("code_rl.backends")
_PATIENCE_S, _KEPT_S = 300.0, 3600


def download_adapter(place: Place, path: str, folder: Path) -> str:
    """Fetch the adapter of a training checkpoint (`tinker://RUN/weights/NAME`) into `folder`; returns its base model's name.

    The service exports a restored copy (kept for an hour and deleted afterwards); sampler weights cannot be fetched.

    Raises:
        ConfigError: the path is that of sampler weights, or the SDK is too old to fetch.
        BackendError: the service failed or refused.
    """
    if "/weights/" not in path:
        raise ConfigError(
            f"checkpoint={path} cannot be fetched; give the state_path of a checkpoint (tinker://RUN/weights/NAME)"
        )
    import tinker

    link = Link(place, _PATIENCE_S)
    rest_client: Any = getattr(tinker, "RestClient", None)
    if rest_client is None:
        raise ConfigError("fetching a checkpoint needs a newer SDK; run: pip install 'tinker>=0.38'")
    with tinker.ServiceClient(base_url=place.url, api_key=place.key) as service:
        client: Any = link.submit(lambda: service.create_training_client_from_state(path)).result()
        base_model = str(client.get_info().model_data.model_name)
        saved: Any = link.submit(lambda: client.save_weights_external("code-rl-export", ttl_seconds=_KEPT_S)).result()
        rest = rest_client(base_url=place.url, api_key=place.key)
        try:
            found: Any = link.submit(lambda: rest.get_external_weights_urls(saved.path)).result()
            for name, url in found.urls.items():
                _fetch(name, url, folder)
        finally:
            _forget(link, rest, saved.path)
    return base_model


def _fetch(name: str, url: str, folder: Path) -> None:
    import httpx

    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise BackendError(f"the service names a file outside the checkpoint: {name!r}")
    target = folder / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60.0) as answer, target.open("wb") as file:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                file.write(part)
    except httpx.HTTPError as error:
        # The address is signed: it is a credential, and stays out of the message.
        raise BackendError(f"{name} could not be fetched: {type(error).__name__}") from None


def _forget(link: Link, rest: Any, path: str) -> None:
    try:
        link.submit(lambda: rest.delete_checkpoint_from_tinker_path(path)).result()
    except BackendError as error:
        logger.warning("%s was not deleted and stays for an hour: %s", path, error)
