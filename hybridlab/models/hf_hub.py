"""Models of the Hugging Face hub: `hub:OWNER/NAME`, or OWNER/NAME where no folder of that name is; with @REVISION, one
version of it (a commit, a tag or a branch).

    folder = hub_folder("hub:EleutherAI/pythia-70m")    # its config, weights and tokenizer, in the hub's own cache

Only config.json, safetensors and the files of the tokenizer are fetched; a second call finds them in the cache, also
without a network.
"""

from __future__ import annotations

import re
from pathlib import Path

from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError

PREFIX = "hub:"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = [
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"),
    *("model-*-of-*.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "chat_template.jinja",
]


def is_hub_name(reference: str) -> bool:
    """Whether a reference names a model of the hub: hub:OWNER/NAME, or OWNER/NAME where there is no folder OWNER.

    RUN/best and RUN/final are models of a run; a model of the hub with such a name needs `hub:`.
    """
    if reference.startswith(PREFIX):
        return True
    owner, _, name = reference.partition("/")
    return _NAME.fullmatch(reference) is not None and name not in ("best", "final") and not Path(owner).exists()


def hub_folder(reference: str) -> Path:
    """The folder of the hub's cache with a model's files, after fetching those that are missing.

    UserError if there is no such model, if its terms were not accepted, and if the hub cannot be reached and the files
    are not in the cache.
    """
    from huggingface_hub import errors, snapshot_download

    name, _, revision = reference.removeprefix(PREFIX).partition("@")
    where = f"{PREFIX}{name}" if reference.startswith(PREFIX) else f"{name}: there is no such folder; hub:{name}"
    if not _NAME.fullmatch(name):
        raise UserError(f"{where}: a model of the hub is called OWNER/NAME, as in hub:EleutherAI/pythia-70m")
    try:
        with without_hub(wanted=False):
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=_FILES))
    except errors.GatedRepoError:
        raise UserError(
            f"{where}: this model is gated; accept its terms at https://huggingface.co/{name}, then log in with "
            "`hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{where}: this model has no revision {revision!r}; leave it out for the newest") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{where}: the hub has no such model that can be read; check the name, or log in with `hf auth login` if "
            "it is private"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(
            f"{where}: the hub cannot be reached, and this model is not in its cache; connect, or give a folder"
        ) from None
    except Exception as error:  # the client passes on the errors of the libraries that it uses
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise UserError(f"{where}: it cannot be fetched ({reason}); try again, or give a folder") from None
