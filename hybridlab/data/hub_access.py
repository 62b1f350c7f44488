"""The Hugging Face hub: whether it can be reached, and doing without it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlparse

_SECONDS = 1.5
"""In which the hub must have answered, its name included."""
_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_MODULES = ("huggingface_hub.constants", "datasets.config")
"""Both read the environment when they are imported."""
_ENDPOINT = "https://huggingface.co"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """A context with these variables in the environment, which are as before after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def without_hub(wanted: bool) -> Iterator[None]:
    """A context in which the hub is asked for nothing, so that what is not here is an error at once: if that is
    `wanted`, or if the hub cannot be reached, where the libraries would try again and again for half a minute."""
    set_before = any(os.environ.get(name, "0").lower() in ("1", "true", "yes", "on") for name in _SWITCHES)
    if not (wanted or set_before or not _reachable()):
        yield
        return
    with environment(**dict.fromkeys(_SWITCHES, "1")):
        _tell_modules(True)
        try:
            yield
        finally:
            _tell_modules(set_before)


def _tell_modules(offline: bool) -> None:
    for module in _MODULES:
        if module in sys.modules:
            sys.modules[module].__dict__["HF_HUB_OFFLINE"] = offline


def _reachable() -> bool:
    """Whether a connection to the hub can be made; behind a proxy only the libraries can tell."""
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    address = urlparse(os.environ.get("HF_ENDPOINT", _ENDPOINT))
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    answered: list[bool] = []
    over = threading.Event()

    def connect(place: tuple[str, int]) -> None:
        with suppress(OSError), socket.create_connection(place, _SECONDS):
            answered.append(True)
            over.set()

    def ask() -> None:
        with suppress(OSError):
            places = {place[:2] for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
            threads = [threading.Thread(target=connect, args=(place,), daemon=True) for place in places]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        over.set()

    # Some of its addresses may never answer, and neither may the server of names: all are asked at once, and nothing is
    # waited for longer than this.
    threading.Thread(target=ask, daemon=True).start()
    over.wait(_SECONDS)
    return bool(answered)
