"""Readers of files: what they read, compressed or not, and how mistakes in files are explained."""

import gzip
import json
import random

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from hybridlab.data.files import Layout, SourceFile, files_key, read_records
from hybridlab.data.sources import LONG_DOCUMENT, LONGEST_DOCUMENT, Documents, read_documents, source_files
from hybridlab.errors import UserError
from tests.conftest import write_text

CHECKED = zstandard.ZstdCompressor(write_checksum=True)
PACK = {"": bytes, ".gz": gzip.compress, ".zst": lambda raw: CHECKED.compress(raw[:99]) + CHECKED.compress(raw[99:])}
TEXTS = ["one", 'two, with a comma and a "quote"', "three\nlines\n", "Grüße 世界"]


def table(path, **columns):
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def read(source, field="text"):
    return list(read_documents(source, field))


def csv_text(separator=","):
    quoted = [f'{i}{separator}"{text.replace(chr(34), chr(34) * 2)}"\r\n' for i, text in enumerate(TEXTS)]
    return f"id{separator}text\r\n" + "".join(quoted)


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("jsonl", "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)),
        ("csv", "a.csv", csv_text()),
        ("csv", "a.tsv", csv_text("\t")),
    ],
)
def test_tables_and_lines_give_their_texts_compressed_or_not(tmp_path, kind, name, content, ending):
    path = tmp_path / (name + ending)
    path.write_bytes(PACK[ending](content.encode()))
    assert read(f"{kind}:{path}") == read(f"{kind}:{tmp_path}") == TEXTS


@pytest.mark.parametrize("ending", [".gz", ".zst", ".GZ"])
def test_compressed_text_is_cut_like_plain_text(tmp_path, ending):
    plain = write_text(tmp_path / "words.txt", 300_000)
    packed = tmp_path / f"words.txt{ending}"
    packed.write_bytes(PACK[ending.lower()](plain.read_bytes()))
    assert read(f"text:{packed}") == read(f"text:{plain}") and len(read(f"text:{plain}")) > 5


def whole_text_cut(text):
    """The rule for cutting, on a text that is in memory."""
    if len(text) <= LONG_DOCUMENT:
        return [text]
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + LONG_DOCUMENT // 2)
        end = len(text) if end < 0 else end + 1
        if end - start > LONG_DOCUMENT:
            end = start + LONG_DOCUMENT
        pieces.append(text[start:end])
        start = end
    return pieces


@pytest.mark.parametrize("length", [1, LONG_DOCUMENT, LONG_DOCUMENT + 1, 3 * LONG_DOCUMENT + 7, 2_200_000])
@pytest.mark.parametrize("line", [3, 900, 20_000, 10**9])
def test_a_text_that_is_read_in_chunks_is_cut_by_the_same_rule(tmp_path, length, line):
    rng, lines, made = random.Random(length), [], 0
    while made < length:
        lines.append("é" * rng.randrange(1, min(line, length + 1) + 1) + "\n" * (line < 10**9))
        made += len(lines[-1])
    text = "".join(lines)
    path = tmp_path / "a.txt"
    path.write_text(text[:length], encoding="utf-8")
    assert read(f"text:{path}") == whole_text_cut(text[:length])


def test_parquet_reads_one_column_in_order(tmp_path):
    table(tmp_path / "b.parquet", text=["four"], number=[4])
    dictionary = pa.array(TEXTS).dictionary_encode()
    table(tmp_path / "a.parquet", number=[1, 2, 3, 4], text=TEXTS, other=dictionary)
    assert read(f"parquet:{tmp_path}") == [*TEXTS, "four"]
    assert read(f"parquet:{tmp_path / 'a.parquet'}", "other") == TEXTS


def test_a_folder_gives_all_its_files_in_order_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a.md", "sub/c.txt", ".hidden.txt", ".cache/d.txt", "notes.rst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"packed"))
    assert read(f"text:{tmp_path}") == ["a.md", "b.txt", "packed", "sub/c.txt"]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"the same again"))
    with pytest.raises(UserError, match=r"b.txt and b.txt.gz, which would be read twice"):
        read(f"text:{tmp_path}")


def test_a_changed_file_changes_the_key_of_every_kind(tmp_path):
    path = table(tmp_path / "a.parquet", text=["one"])
    before = files_key(source_files(f"parquet:{path}"))
    table(path, text=["one", "two"])
    assert files_key(source_files(f"parquet:{path}")) != before and source_files(f"parquet:{tmp_path}") == [path]


def test_the_share_that_has_been_read_grows_to_one(tmp_path):
    write_text(tmp_path / "a.txt", 3_000_000)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    table(tmp_path / "c.parquet", text=[str(i) for i in range(3000)])
    for source in (f"text:{tmp_path}", f"parquet:{tmp_path}"):
        documents = read_documents(source)
        shares = [documents.share for _ in documents]
        assert shares == sorted(shares) and 0 < shares[len(shares) // 2] < 1 and documents.share == 1
    limited = read_documents(f"text:{tmp_path}", max_documents=4)
    assert [limited.share for _ in limited][1:] == [0.5, 0.75, 1]


@pytest.fixture
def long_sources(tmp_path):
    """The same texts, of which one is very long, in a source of each kind."""
    long = "".join(f"line {n}\n" for n in range(LONGEST_DOCUMENT // 9))
    texts = ["a", "b", long, "c", "x" * LONGEST_DOCUMENT]
    assert len(long) > LONGEST_DOCUMENT
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "a.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    (tmp_path / "hub").mkdir()
    table(tmp_path / "hub" / "a.parquet", text=texts)
    kinds = [f"jsonl:{tmp_path / 'a.jsonl'}", f"csv:{tmp_path / 'a.csv'}", f"parquet:{tmp_path / 'hub'}"]
    return [*kinds, f"hub:{tmp_path / 'hub'}"], texts


def test_very_long_documents_of_every_source_are_cut_like_a_text_file(long_sources):
    sources, texts = long_sources
    for source in sources:
        found = read(source)
        assert found == ["a", "b", *whole_text_cut(texts[2]), "c", texts[4]]
        assert max(map(len, found[:-1])) <= LONG_DOCUMENT
        assert len(list(read_documents(source, max_documents=5))) == 5


def test_reading_goes_on_inside_a_document_that_is_cut(long_sources):
    sources, texts = long_sources
    whole = ["a", "b", *whole_text_cut(texts[2]), "c", texts[4]]
    for source in sources:
        # Asked for its place before, or only inside of the long document.
        for number, asked in [(2, 1), (4, 2), (6, 5), (9, 0), (len(whole) - 2, 3), (len(whole) - 1, 4), (7, 1)]:
            documents = read_documents(source)
            for count in range(number):
                next(documents)
                if count + 1 == asked:
                    assert documents.place["documents"] == asked
            again = read_documents(source)
            again.go_to(json.loads(json.dumps(documents.place)))
            second = next(again)
            once_more = read_documents(source)
            once_more.go_to(json.loads(json.dumps(again.place)))
            assert [second, *again] == whole[number:] and list(once_more) == whole[number + 1 :]
    plain = Documents(iter(texts))
    assert [next(plain) for _ in range(5)] == whole[:5]
    again = Documents(iter(texts))
    again.go_to(plain.place)
    assert list(again) == whole[5:]


WRONG_KINDS = [
    (None, "is null, and must be a text"),
    (3, r"is a number \(3\)"),
    (2.5, r"is a number \(2.5\)"),
    ([1, 2], r"is a list \(\[1, 2\]\)"),
    ({"a": 1}, r"is an object"),
    (True, r"is true or false \(True\)"),
]


@pytest.mark.parametrize(("value", "said"), WRONG_KINDS)
def test_a_field_that_holds_no_text_is_named_for_what_it_is(tmp_path, value, said):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": value}) + "\n")
    with pytest.raises(UserError, match=rf"a.jsonl:2: the field 'text' {said}.*skip_bad_lines.*another field"):
        read(f"jsonl:{tmp_path / 'a.jsonl'}")


BROKEN_CSV = [
    ("", "the file is empty; give a table with the names"),
    ("one,two\n1,2\n", r"a.csv:1: no text in field 'text' \(the header, separated by commas, has: one, two\)"),
    ("text,text\n1,2\n", "a.csv:1: the header has the column 'text' more than once"),
    ("id,text\n", "no rows below its header"),
    ("id,text\n1,fine\n2,not,fine\n", r"a.csv:3: this row has 3 columns, the header has 2"),
    ('id,text\n1,"two\nlines"\n2,"open\n3,x\n', r"a.csv:4: .*a quote that opens here is never closed"),
    ('id,text\n1,"closed" too early\n', r"a.csv:2: this row is not CSV"),
    ("id\0,text\n1,2\n", "binary"),
    ("id,text\n1,caf\udce9\n", "not UTF-8"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN_CSV)
def test_bad_csv_is_explained_with_its_line(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content, errors="surrogateescape", newline="")
    with pytest.raises(UserError, match=message):
        read(f"csv:{tmp_path / 'a.csv'}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text;label\none;1\ntwo;0\n", "a.csv:1: semicolons separate this line; write commas in their place"),
        ("a.csv", "text\tlabel\none\t1\n", "a.csv:1: tabs separate this line, so call the file .tsv"),
        ("a.tsv", "text,label\none,1\n", "a.tsv:1: commas separate this line, so call the file .csv"),
        ("a.csv", "text|label\none|1\n", "a.csv:1: bars separate this line"),
    ],
)
def test_columns_that_another_character_separates_are_no_single_column(tmp_path, name, content, message):
    """Also where their names together are given as the name of the field."""
    (tmp_path / name).write_text(content)
    for field in ("text", content.split("\n")[0]):
        with pytest.raises(UserError, match=message):
            read(f"csv:{tmp_path / name}", field)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_json_array_is_called_so_as_jsonl_and_is_read_as_json(tmp_path, mark):
    whole = [{"text": text} for text in TEXTS]
    for indent, said in ((None, "is a JSON array"), (1, "begins a JSON array of several lines")):
        text = mark + json.dumps(whole, indent=indent, ensure_ascii=False)
        for name in ("a.jsonl", "a.json"):
            (tmp_path / name).write_text(text)
        assert read(f"jsonl:{tmp_path / 'a.json'}") == TEXTS
        for skip_bad_lines in (False, True):
            with pytest.raises(UserError, match=f"a.jsonl:1: this line {said}; write one object on each line, or call"):
                list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}", skip_bad_lines=skip_bad_lines))
    documents = read_documents(f"jsonl:{tmp_path / 'a.json'}")
    next(documents), next(documents)
    again = read_documents(f"jsonl:{tmp_path / 'a.json'}")
    again.go_to(documents.place)
    assert list(again) == TEXTS[2:]


def test_entries_of_a_json_list_that_are_no_text_are_named_or_left_out(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"text": "one"}, {"text": "half \\ud83d"}, {"text": "smile \\ud83d\\ude00"}]')
    with pytest.raises(UserError, match=r"a.json: entry 1 \(.*\): this is no text in UTF-8 .*skip_bad_lines"):
        read(f"jsonl:{path}")
    documents = read_documents(f"jsonl:{path}", skip_bad_lines=True)
    assert list(documents) == ["one", "smile 😀"] and documents.bad == 1
    path.write_text('[{"text": "one", "id": ' + "1" * 5000 + "}]")
    with pytest.raises(UserError, match=r"a.json: this file cannot be read \(Exceeds the limit .*\); correct it"):
        read(f"jsonl:{path}")


def test_text_in_utf16_is_told_how_to_become_utf8(tmp_path):
    (tmp_path / "a.txt").write_text("one two", encoding="utf-16")
    with pytest.raises(UserError, match="byte 0 is not UTF-8; if it is text, convert it: iconv -f utf-16 -t utf-8"):
        read(f"text:{tmp_path / 'a.txt'}")


def test_bad_parquet_is_explained(tmp_path):
    path = table(tmp_path / "a.parquet", body=["one"], number=[1], mixed=[None])
    with pytest.raises(UserError, match=r"no text in field 'text' \(it has: body, number, mixed\); name it with"):
        read(f"parquet:{path}")
    with pytest.raises(UserError, match=r"'number' \(it holds int64; columns of text: body\)"):
        read(f"parquet:{path}", "number")
    table(tmp_path / "null.parquet", text=["one", "two", None])
    with pytest.raises(UserError, match="row 2 .* has no value in the column 'text'"):
        read(f"parquet:{tmp_path / 'null.parquet'}")
    table(tmp_path / "empty.parquet", text=pa.array([], pa.string()))
    with pytest.raises(UserError, match="no rows"):
        read(f"parquet:{tmp_path / 'empty.parquet'}")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(UserError, match=r"no.parquet: this cannot be read as a parquet file"):
        read(f"parquet:{tmp_path / 'no.parquet'}")
    raw = bytearray(table(tmp_path / "cut.parquet", text=TEXTS).read_bytes())
    raw[4:40] = bytes(36)
    (tmp_path / "cut.parquet").write_bytes(raw)
    with pytest.raises(UserError, match=r"cut.parquet: this cannot be read"):
        read(f"parquet:{tmp_path / 'cut.parquet'}")


def test_rows_of_parquet_that_cannot_be_read_are_named_or_left_out(tmp_path):
    def check(path, message):
        with pytest.raises(UserError, match=rf"{path.name}: row 1 \(counted from 0\): {message}"):
            list(read_records(SourceFile(path)))
        file = SourceFile(path, skip_bad=True)
        assert [record.origin.split(" (")[0] for record in read_records(file)] == [f"{path}: row 0", f"{path}: row 2"]
        assert (file.records, file.bad) == (3, 1)

    texts = pa.array([b"one", b"caf\xe9", b"three"], pa.binary()).view(pa.string())
    path = table(tmp_path / "a.parquet", text=texts, number=[1, 2, 3])
    check(path, "this is not UTF-8 text; convert it, or remove it")
    documents = read_documents(f"parquet:{path}", skip_bad_lines=True)
    assert list(documents) == ["one", "three"] and documents.bad == 1
    days = pa.array([1, 2**50, 3], pa.int64()).view(pa.timestamp("s"))
    check(table(tmp_path / "b.parquet", day=days), "this row cannot be read .*; correct it, or remove it")


@pytest.mark.parametrize("encoding", ["utf-7", "shift_jis", "nothing"])
def test_xml_that_names_another_encoding_is_refused(tmp_path, encoding):
    path = tmp_path / "a.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?>\n<all><one/></all>')
    with pytest.raises(UserError, match=r"a.xml:1: this is not XML in UTF-8 \(.*\); convert it"):
        list(read_records(SourceFile(path), Layout(element="one")))


@pytest.mark.parametrize(("ending", "name"), [(".gz", "gzip"), (".zst", "zstd")])
def test_damaged_archives_are_explained(tmp_path, ending, name):
    packed = PACK[ending](random.Random(0).randbytes(5000).hex().encode())
    path = tmp_path / f"a.txt{ending}"
    for content in (packed[:100], packed[:-20], packed[:300] + bytes(9) + packed[309:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a.txt{ending}: this {name} file is cut short or damaged"):
            read(f"text:{path}")
    path.write_bytes(b"plain text")
    with pytest.raises(UserError, match=f"this is not a {name} file"):
        read(f"text:{path}")
    path.write_bytes(b"")
    with pytest.raises(UserError, match="no text"):
        read(f"text:{path}")


def test_the_place_of_a_bad_byte_is_right_in_any_chunk(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 1_500_000 + b"\0")
    with pytest.raises(UserError, match="byte 1500000 is zero"):
        read(f"text:{path}")
    path.write_bytes("é".encode() * 800_000 + b"\xe9 ")
    with pytest.raises(UserError, match="byte 1600000 is not UTF-8"):
        read(f"text:{path}")
