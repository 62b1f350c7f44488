"""Whether the Hugging Face hub is asked."""

import os

import huggingface_hub.constants as constants
import pytest

from hybridlab.data import hub_access as hub


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
