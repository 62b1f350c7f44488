"""Task files below the data root, and the cells of experiments that need them."""

import pytest

from hybridlab.config.finetune import Finetune
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.data.files import DATA_ROOT, located, missing_files, use_data_root
from hybridlab.errors import UserError
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale


@pytest.fixture(autouse=True)
def no_root(monkeypatch):
    monkeypatch.delenv(DATA_ROOT, raising=False)


def test_a_path_below_the_root_is_stored_as_it_is(tmp_path, monkeypatch):
    settings = Finetune(task="sst2", data="root:glue/dev.tsv", validation="root:glue/test.tsv")
    assert settings.data == "root:glue/dev.tsv"
    with pytest.raises(UserError, match="root:glue/dev.tsv: no data root is set"):
        located(settings.data)
    assert missing_files(settings).startswith("no data root is set")
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))
    assert located(settings.data) == tmp_path / "glue" / "dev.tsv"
    assert missing_files(settings) == f"{tmp_path}/glue/dev.tsv is not there"
    (tmp_path / "glue").mkdir()
    for name in ("dev.tsv", "test.tsv"):
        (tmp_path / "glue" / name).touch()
    assert missing_files(settings) is None


def test_files_that_need_no_root_are_not_looked_for(tmp_path):
    assert missing_files(Finetune(task="sst2")) is None
    assert missing_files(Finetune(task="sst2", data=str(tmp_path / "none.tsv"))) is None


def test_a_root_that_is_not_there_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--data-root .*: there is no such folder"):
        use_data_root(tmp_path / "none")
    monkeypatch.setenv(DATA_ROOT, "before")
    use_data_root(None)
    assert str(located("root:x")) == "before/x"


def test_runs_without_their_files_are_left_out(tmp_path, monkeypatch):
    wanted = ExperimentAtScale(load_experiment("saobp-table1"), "smoke")
    assert sorted(name for name, _ in wanted.runs().values()) == [
        f"mini/{a}" for a in ("elemmul", "high", "low", "original")
    ]
    left_out = wanted.left_out()
    assert len(left_out) == 4 and all(reason.startswith("no data root") for reason in left_out.values())
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))
    (tmp_path / "race").mkdir()
    (tmp_path / "race" / "test_middle.jsonl").touch()
    whole = ExperimentAtScale(load_experiment("saobp-table1"), "smoke")
    assert len(whole.runs()) == 8 and not whole.left_out()


def test_the_text_of_a_trained_tokenizer_stays_among_the_settings():
    settings = ["finetune.task=sst2", "finetune.data=root:a.tsv", "training.steps=5"]
    trained = resolve("bert", "bert-tiny", settings=[*settings])
    assert trained.data.source == "embedded" and trained.data.tokenizer == "bpe+mask:896"
    own = resolve("bert", "bert-tiny", settings=[*settings, "data.tokenizer=file:/t/tokenizer.json"])
    assert own.data.source is None
    assert run_hash(trained) != run_hash(own)
