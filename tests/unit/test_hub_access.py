"""Whether the Hugging Face hub is asked, and what is said without it."""

import os
import socket
import time

import huggingface_hub.constants as constants
import pytest

from hybridlab.config.finetune import Finetune
from hybridlab.data import hub_access as hub
from hybridlab.data.finetune.corpus import parts_of
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from hybridlab.models.huggingface import hub_path, hub_revision
from hybridlab.registry import FINETUNE_TASKS


@pytest.fixture
def online(monkeypatch):
    """The environment of a machine with a network, which the tests do not have."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", *hub._PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return monkeypatch


@pytest.mark.parametrize("wanted, reachable, offline", [(True, True, True), (False, False, True), (False, True, False)])
def test_offline_inside_and_as_before_after(online, wanted, reachable, offline):
    online.setattr(hub, "_reachable", lambda: reachable)
    with hub.without_hub(wanted):
        assert (constants.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE") == "1") == (offline, offline)
    assert not constants.HF_HUB_OFFLINE and "HF_HUB_OFFLINE" not in os.environ


def test_what_was_offline_stays_so(online):
    online.setenv("HF_HUB_OFFLINE", "1")
    with hub.without_hub(False):
        assert constants.HF_HUB_OFFLINE
    assert constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_hub_that_cannot_be_reached_is_found_out(online):
    online.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub._reachable()
    online.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert hub._reachable()


def never(*_, **__):
    time.sleep(4)
    raise OSError


def test_a_hub_is_reached_though_another_of_its_addresses_never_answers(online):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, connect, names = server.getsockname()[1], socket.create_connection, socket.getaddrinfo
        places = [names(host, port, type=socket.SOCK_STREAM)[0] for host in ("192.0.2.1", "127.0.0.1")]
        online.setenv("HF_ENDPOINT", f"http://hub.test:{port}")
        online.setattr(socket, "getaddrinfo", lambda host, *a, **k: places if host == "hub.test" else names(host, *a))
        online.setattr(
            socket, "create_connection", lambda place, *a: never() if place[0] == "192.0.2.1" else connect(place, *a)
        )
        assert hub._reachable()


def test_a_server_of_names_that_never_answers_costs_little(online):
    online.setattr(socket, "getaddrinfo", never)
    started = time.monotonic()
    assert not hub._reachable() and time.monotonic() - started < 3.5


def ask_tokenizer():
    make_tokenizer("hub:someone/tokens", ())


def ask_model():
    hub_path("hub:someone/model")


def ask_examples():
    parts_of(FINETUNE_TASKS.get("sst2"), Finetune(task="sst2"))


@pytest.mark.parametrize(
    "ask, what", [(ask_tokenizer, "this tokenizer"), (ask_model, "this model"), (ask_examples, "this dataset")]
)
def test_without_a_network_it_ends_at_once_in_one_sentence(online, tmp_path, capfd, ask, what):
    import datasets  # its import takes seconds

    online.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    online.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    online.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(UserError, match=f"the hub cannot be reached, and {what} is not in its cache"):
        ask()
    assert time.monotonic() - started < 8 and "etry" not in capfd.readouterr().err


def test_a_tokenizer_in_the_cache_needs_no_network(online, tmp_path):
    online.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    online.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder, commit = tmp_path / "models--someone--tokens", "1" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    made = make_tokenizer("byte", ())
    made.save(str(folder / "snapshots" / commit / "tokenizer.json"))
    assert make_tokenizer("hub:someone/tokens", ()).get_vocab() == made.get_vocab()


@pytest.mark.parametrize("below", ["", "/model.gguf", "/Q4/model.gguf"])
def test_the_commit_of_what_lies_in_the_cache(below):
    assert hub_revision(f"/home/me/hub/models--maker--bit/snapshots/0a1b{below}") == "0a1b"
