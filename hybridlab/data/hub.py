"""Data sets of the Hugging Face hub, or local folders in the hub's layout, streamed by the package `datasets`.

hub:allenai/c4:en                                    a configuration
hub:wikimedia/wikipedia:20231101.en:train            a split, by default train; without a configuration NAME::SPLIT
hub:bookcorpus/bookcorpus@refs/convert/parquet       a revision: here the hub's own copy as Parquet
hub:./folder                                         a folder with shards, and `configs:` in its README.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.data.documents import Place
from hybridlab.data.readers import NoSuchField, not_a_text
from hybridlab.errors import UserError

_SECONDS_TO_ANSWER = 10.0
_SYNTAX = "hub:NAME[@REVISION][:CONFIG[:SPLIT]]"


@dataclass(frozen=True)
class HubName:
    """What follows `hub:`. folder: the local folder, if there is one of this name."""

    name: str
    revision: str | None
    config: str | None
    split: str
    folder: Path | None

    @classmethod
    def read(cls, argument: str) -> HubName:
        """UserError if it has too many parts, or is the path of a folder that is not there."""
        name, *more = argument.split(":")
        if len(more) > 2:
            raise UserError(f"data source hub:{argument}: it has too many parts; write {_SYNTAX}")
        config, split = (more + ["", ""])[:2]
        folder = Path(name).expanduser()
        if folder.is_dir():
            return cls(name, None, config or None, split or "train", folder)
        if name.startswith(("/", "./", "../", "~")):
            raise UserError(f"data source hub:{argument}: there is no such folder; give another path")
        name, _, revision = name.partition("@")
        return cls(name, revision or None, config or None, split or "train", None)


def stored(argument: str) -> str:
    """The form in which a run's configuration keeps it: a local folder with its absolute path."""
    name, colon, more = argument.partition(":")
    folder = Path(name).expanduser()
    return f"{folder.absolute()}{colon}{more}" if folder.is_dir() else argument


def local_parts(argument: str) -> list[Path]:
    """The files of a local folder, sorted, without hidden ones; none for a data set of the hub."""
    folder = HubName.read(argument).folder
    if folder is None:
        return []
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def label(argument: str) -> str:
    """What it is called in a mixture: name and configuration without the revision."""
    name, colon, more = argument.partition(":")
    return (name if Path(name).expanduser().is_dir() else name.partition("@")[0]) + colon + more


class HubDocuments(Iterator[str]):
    """The texts of one field of a data set, in the order of its files.

    skip_bad: leave out records without text. bad: how many have been left out.
    """

    def __init__(self, argument: str, field: str) -> None:
        self.source, self.name, self.field = f"hub:{argument}", HubName.read(argument), field
        self.skip_bad, self.bad, self.number = False, 0, 0
        self.stream: Any = None
        self.records: Iterator[dict[str, Any]] | None = None

    def __next__(self) -> str:
        while True:
            record = self._next_record()
            self.number += 1
            text = record.get(self.field)
            if isinstance(text, str):
                return text
            if not self.skip_bad or self.field not in record:
                raise self._without_text(record)
            self.bad += 1

    def _without_text(self, record: dict[str, Any]) -> UserError:
        where = f"{self.source}: record {self.number - 1}"
        if self.field in record:
            return not_a_text(f"{where} (counted from 0)", self.field, record[self.field])
        return NoSuchField(where, self.field, f"it has: {', '.join(record)}")

    def _next_record(self) -> dict[str, Any]:
        try:
            if self.records is None:
                self._open()
                self.records = iter(self.stream)
            return next(self.records)
        except (UserError, StopIteration):
            raise
        except Exception as error:  # the library raises errors of many types, for network and files
            raise self._explained(error) from None

    def _open(self) -> None:
        if self.stream is not None:
            return
        if self.name.folder is None:
            _check_access(self.source, self.name)
        import datasets

        name = self.name
        where = str(name.folder) if name.folder else name.name
        self.stream = datasets.load_dataset(
            where, name.config, split=name.split, revision=name.revision, streaming=True
        )

    def _explained(self, error: Exception) -> UserError:
        """The library's reason on one line, with what to write instead where that is known."""
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "scripts are no longer supported" in reason:
            parquet = f"hub:{self.name.name}@refs/convert/parquet"
            return UserError(
                f"{self.source}: the data set needs a program of its own, which is not run; use a copy of it as "
                f"Parquet, such as the hub's own if there is one: {parquet}"
            )
        if any(text in reason for text in ("onfig name", "BuilderConfig", "split: ")):
            return UserError(f"{self.source}: {reason.rstrip('.')}; name config and split as {_SYNTAX}")
        return UserError(f"{self.source}: the dataset cannot be read ({reason[:160]})")

    @property
    def place(self) -> Place:
        """Where the stream stands; it goes on in its file without reading those before."""
        return {"stream": self.stream.state_dict(), "records": self.number, "bad": self.bad}

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place."""
        try:
            self._open()
            self.stream.load_state_dict(place["stream"])
        except UserError:
            raise
        except Exception as error:
            raise self._explained(error) from None
        self.number, self.bad = place["records"], place["bad"]


def _check_access(source: str, name: HubName) -> None:
    """UserError if the hub does not answer, has no such data set, or asks for terms to be accepted; without retries."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    api = HfApi()
    try:
        if api.dataset_info(name.name, timeout=_SECONDS_TO_ANSWER, expand=["gated"]).gated:
            api.auth_check(name.name, repo_type="dataset")
    except HFValidationError:
        raise UserError(f"{source}: this is no name of a data set; write {_SYNTAX}, or hub:./FOLDER") from None
    except GatedRepoError:
        page = f"https://huggingface.co/datasets/{name.name}"
        raise UserError(
            f"{source}: its owners ask for their terms to be accepted; accept them at {page}, then log in with "
            "`hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{source}: the hub has no such data set, or it is private; correct the name, or log in with "
            "`hf auth login`"
        ) from None
    except OfflineModeIsEnabled:
        raise UserError(
            f"{source}: the hub is switched off by HF_HUB_OFFLINE=1; remove that, or give a local folder as "
            "hub:./FOLDER"
        ) from None
    except Exception as error:  # those of the HTTP client, which depends on the version of the library
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{source}: the hub cannot be reached ({reason}); check the network, or give a local folder as hub:./FOLDER"
        ) from None
