"""Records of benchmark files as the rows that lm-eval's tasks read: one function for each kind of row.

presets/benchmarks/files.yaml names them. Each takes the values of a record in any layout in which its data is released,
and gives the rows that stand in it. A record that lacks something raises KeyError, ValueError, TypeError or IndexError,
which becomes an error with its place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

Rows = Iterator[dict[str, Any]]
LETTERS = "ABCDEFGHIJ"
_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.0*)?")


def need(values: Any, *names: str) -> dict[str, Any]:
    """These entries of an object. KeyError, ValueError: it lacks one, or is no object."""
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    return {name: values[name] for name in names}


def text(value: Any) -> str:
    """A text; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not a text")
    return value


def texts(value: Any) -> list[str]:
    """A list of at least one text; ValueError for anything else, such as a table's cell with a list written out."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{str(value)[:40]!r} is not a list of texts")
    return list(value)


def whole(value: Any) -> int | None:
    """A whole number, given as itself, as 3.0 or as a text of these; None for anything else."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value.strip())
        return int(match[1]) if match else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def one_of(value: Any, most: int, names: Sequence[str] = ()) -> int:
    """A number from 0 to most − 1: a whole number, one of `names` in any case, or of two false or true. ValueError with
    what is wanted for anything else."""
    word = value.strip().casefold() if isinstance(value, str) else None
    folded = [name.casefold() for name in names]
    if word in folded:
        return folded.index(word)
    number = int(value) if isinstance(value, bool) and most == 2 else whole(value)
    if number is not None and 0 <= number < most:
        return number
    allowed = ", ".join(f"{place} ({name})" for place, name in enumerate(names)) or f"a number from 0 to {most - 1}"
    hidden = "; -1 marks a label that was not published" if number == -1 else ""
    raise ValueError(f"the label is {value!r}, and must be {allowed}{hidden}")


def _from_one(name: str, most: int, value: Any) -> str:
    """A number from 1 to most, as a text. ValueError with what is wanted for anything else."""
    number = whole(value)
    if number is None or not 1 <= number <= most:
        raise ValueError(f"the {name} is {value!r}, and must be a number from 1 to {most}")
    return str(number)


def _fields(names: str, **makers: Callable[[Any], Any]) -> Callable[[Any], Rows]:
    """A kind of row with these entries of a record. makers: by the name of a value, what makes it."""

    def rows(values: Any) -> Rows:
        row = need(values, *names.split())
        yield row | {name: make(row[name]) for name, make in makers.items()}

    return rows


open_questions = _fields("question answer", question=text, answer=texts)
"""Natural Questions: a question and its accepted answers."""
piqa = _fields("goal sol1 sol2 label", label=partial(one_of, most=2))
sciq = _fields("question distractor1 distractor2 distractor3 correct_answer support")
social_iqa = _fields("context question answerA answerB answerC label", label=partial(_from_one, "label", 3))


def as_they_are(values: Any) -> Rows:
    need(values)
    yield values


def passage(values: Any) -> Rows:
    """LAMBADA: a text whose last word is asked for."""
    if "continuation" in values:
        yield {"text": f"{text(values['context'])} {text(values['continuation']).lstrip()}"}
    else:
        yield {"text": text(values["text"])}


def page(values: Any) -> Rows:
    """A whole document of WikiText."""
    yield {"page": text(values["page"] if isinstance(values, dict) else values)}


def hellaswag(values: Any) -> Rows:
    """An object, or six lines: topic and context, number of the right ending, four endings."""
    if isinstance(values, list):
        topic, _, context = values[0].partition(": ")
        # lm-eval begins the unfinished sentence with a capital; in six lines it follows the last finished one.
        place = max((match.end() for match in re.finditer(r"[.!?]\s+", context)), default=0)
        first, second = context[:place].rstrip(), context[place:]
        yield {
            "activity_label": topic,
            "ctx_a": first or second,
            "ctx_b": second if first else "",
            "endings": values[2:6],
            "label": str(one_of(values[1].strip(), 4)),
        }
        return
    row = need(values, "activity_label", "ctx_a", "ctx_b", "endings", "label")
    if len(texts(row["endings"])) != 4:
        raise ValueError("it has not four endings")
    yield {**row, "label": str(one_of(row["label"], 4))}


def winogrande(values: Any) -> Rows:
    row = need(values, "sentence", "option1", "option2", "answer")
    if "_" not in text(row["sentence"]):
        raise ValueError("the sentence has no _")
    yield {**row, "answer": _from_one("answer", 2, row["answer"])}


def choices(values: Any) -> tuple[str, list[str], list[str], str]:
    """(question, options, their letters, the right letter) in the layouts of AI2, of the Hugging Face hub, of MosaicML
    and of tables."""
    if "Question Stem" in values:
        options = re.split(r"\s*\(([A-J])\)\s*", text(values["Choices"]))[1:]
        return values["Question Stem"], options[1::2], options[0::2], values["Answer Key"]
    if "query" in values:
        query = text(values["query"]).removeprefix("Question: ").removesuffix("\nAnswer:")
        letters = list(LETTERS[: len(values["choices"])])
        return query, texts(values["choices"]), letters, letters[one_of(values["gold"], len(letters))]
    question, listed = values.get("question", values.get("question_stem")), values.get("choices")
    if isinstance(question, dict):
        question, listed = question["stem"], question["choices"]
    if isinstance(listed, dict):
        options, letters = listed["text"], listed["label"]
    elif isinstance(listed, list):
        options, letters = [entry["text"] for entry in listed], [entry["label"] for entry in listed]
    elif listed is None:
        raise KeyError("choices")
    else:
        raise ValueError(f"choices is {str(listed)[:40]!r}, and must be options with their letters")
    return text(question), texts(options), texts(letters), str(values["answerKey"]).strip()


def _lettered(name: str, values: Any) -> Rows:
    question, options, letters, right = choices(values)
    if right not in letters or len(options) != len(letters):
        raise ValueError(f"the answer {right!r} is none of {', '.join(map(str, letters))}")
    yield {name: question, "choices": {"text": options, "label": letters}, "answerKey": right}


lettered = partial(_lettered, "question")
"""ARC, CommonsenseQA, BasicArithmetic."""
stem = partial(_lettered, "question_stem")
"""OpenBookQA."""


def boolq(values: Any) -> Rows:
    row = {name: text(value) for name, value in need(values, "question", "passage").items()}
    yield {**row, "label": values["label"] if "label" in values else values["answer"]}


def race(values: Any) -> Rows:
    """An article with its questions; lm-eval asks the last one, after the others with their answers."""
    if "problems" in values:
        try:
            problems = ast.literal_eval(str(values["problems"]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError("problems is no list of questions as Python writes it") from None
    else:
        lists = need(values, "questions", "options", "answers")
        problems = [
            {"question": question, "options": options, "answer": answer}
            for question, options, answer in zip(*lists.values(), strict=True)
        ]
    if not problems or any(p["answer"] not in ("A", "B", "C", "D") or len(texts(p["options"])) != 4 for p in problems):
        raise ValueError("each question has four options, and the answer is one of A to D")
    yield {"article": text(values["article"]), "problems": repr(problems)}


def logiqa(values: Any) -> Rows:
    """An object, or eight lines: an empty one, the right letter, context, question, four options that begin with their
    letters."""
    if isinstance(values, dict):
        yield need(values, "label", "context", "question", "options")
        return
    right = values[1].strip()
    if values[0].strip() or right not in ("a", "b", "c", "d"):
        raise ValueError("a record begins with an empty line and one of the letters a to d")
    # As in the dataset of the hub that lm-eval reads.
    context, question, *options = (
        line.replace(".", ". ").strip() for line in (*values[2:4], *(v[2:] for v in values[4:]))
    )
    yield {"label": right, "context": context, "question": question, "options": options}


def mmlu(values: Any) -> Rows:
    if "choices" in values:
        row = need(values, "question", "choices", "answer")
        if len(texts(row["choices"])) != 4:
            raise ValueError("it has not four choices")
    else:
        row = {"question": text(values["question"]), "choices": [values[letter] for letter in "ABCD"]}
        row["answer"] = values["answer"].strip()
    yield {**row, "answer": one_of(row["answer"], 4, "ABCD")}


def glue(values: Any) -> Rows:
    """Any task of GLUE with classes: texts, and the label, which the files of some tasks call differently."""
    written = next((name for name in ("label", "gold_label", "is_duplicate") if name in values), "label")
    row, label = {name: value for name, value in values.items() if name != written}, values[written]
    # The hub calls the two sentences of MNLI by their roles.
    roles = {"sentence1": "premise", "sentence2": "hypothesis"} if written == "gold_label" else {}
    yield {**{roles.get(name, name): value for name, value in row.items()}, "label": label}


def longbench(values: Any) -> Rows:
    row = need(values, "context", "answers")
    yield {**values, **row, "question": text(values.get("question", values.get("input")))}


# ---- written answers: reading comprehension, closed books, arithmetic and word problems ----


def word_problem(values: Any) -> Rows:
    """SVAMP, MAWPS in three layouts, ASDiv: {question, answer}; only problems whose answer is one number."""
    if "sQuestion" in values:
        question, answers = values["sQuestion"], values["lSolutions"]
        answer = answers[0] if len(answers) == 1 else None
    elif "input" in values:
        question, answer = values["input"], values["target"]
    else:
        body = values.get("Body", values.get("body", ""))
        question = (
            f"{text(body).strip()} {text(values['Question'] if 'Question' in values else values['question']).strip()}"
        )
        answer = values["Answer"] if "Answer" in values else values["answer"]
    if isinstance(answer, str):
        match = re.fullmatch(r"\s*(-?[\d,]*\.?\d+)\s*(\([^)]*\))?\s*", answer)
        answer = match[1] if match else None
    if answer is not None:
        number = float(str(answer).replace(",", ""))
        written = str(int(number)) if number == int(number) else str(number)
        yield {"question": text(question).strip(), "answer": written}


def asdiv(values: Any) -> Rows:
    """ASDiv as lm-eval's own task reads it."""
    names = {"body": "Body", "question": "Question", "answer": "Answer", "solution_type": "Solution-Type"}
    yield {name: text(values.get(name, values.get(written))) for name, written in names.items()}


def trivia(values: Any) -> Rows:
    """TriviaQA as released, of the hub, and of MosaicML."""
    if "Data" in values:
        for entry in values["Data"]:
            answer = entry["Answer"]
            yield {"question": entry["Question"], "answer": {"value": answer["Value"], "aliases": answer["Aliases"]}}
    elif "context" in values:
        question = text(values["context"]).removeprefix("Question: ").removesuffix("\nAnswer:")
        yield {"question": question, "answer": {"value": values["answer"], "aliases": values["aliases"]}}
    else:
        row = need(values, "question", "answer")
        answer = need(row["answer"], "value", "aliases")
        yield {**row, "answer": {"value": text(answer["value"]), "aliases": texts(answer["aliases"])}}


def web_questions(values: Any) -> Rows:
    question = values["qText"] if "qText" in values else values["question"]
    if not values["answers"]:
        raise ValueError("it has no answer")
    yield {"question": text(question), "answers": texts(values["answers"])}


def webqa(values: Any) -> Rows:
    """Chinese WebQA in words: the question, the first passage that answers it, and the answers."""
    if "question" in values:
        yield need(values, "question", "context", "answers")
        return
    question = "".join(values["question_tokens"])
    for evidence in values["evidences"]:
        answers = ["".join(tokens) for tokens in evidence["golden_answers"]]
        if answers and answers != ["no_answer"]:
            yield {"question": question, "context": "".join(evidence["evidence_tokens"]), "answers": answers}
            return


def squad(values: Any) -> Rows:
    """SQuAD, TyDiQA GoldP and QuAC in SQuAD's layout, requests of OLMES, and rows of the hub.

    answers: the accepted ones, none if the question has no answer. history: the questions before it with answers.
    """
    if "doc" in values:
        doc = values["doc"]
        context, _, question = text(doc["query"]).partition("\nQuestion: ")
        context = context.partition("Background: ")[2].strip()
        yield _asked(doc["id"], context, question.removesuffix("\nAnswer:"), doc["answers_text"], [])
    elif "data" in values:
        for article in values["data"]:
            for paragraph in article["paragraphs"]:
                yield from _paragraph(paragraph)
    else:
        row = need(values, "context", "question")
        answers = values["answers"]
        accepted = need(answers, "text")["text"]
        # A question without an answer has an empty list.
        yield _asked(str(values.get("id", "")), **row, answers=texts(accepted) if accepted != [] else [], history=[])


def _paragraph(paragraph: dict[str, Any]) -> Rows:
    history: list[str] = []
    # QuAC marks a question without an answer by this word at the end of its passages.
    context = text(paragraph["context"]).removesuffix("CANNOTANSWER").rstrip()
    for qa in paragraph["qas"]:
        answers = [] if qa.get("is_impossible") else [text(a["text"]) for a in qa["answers"]]
        yield _asked(str(qa["id"]), context, qa["question"], answers, list(history))
        first = qa.get("orig_answer", qa["answers"][0] if qa["answers"] else {"text": ""})["text"]
        history.append(f"Q: {qa['question']}\nA: {first}\n")


def _asked(name: str, context: str, question: str, answers: list[str], history: list[str]) -> dict[str, Any]:
    answers = [answer for answer in dict.fromkeys(answers) if answer != "CANNOTANSWER"]
    return {"id": name, "context": text(context), "question": text(question), "answers": answers, "history": history}


def tydiqa(values: Any) -> Rows:
    """TyDiQA GoldP as lm-eval's own tasks read it."""
    for row in squad(values):
        yield {**row, "answers": {"text": row["answers"]}}


def drop(values: Any) -> Rows:
    """DROP as released, of the hub, and as requests of OLMES."""
    if "doc" in values:
        doc = values["doc"]
        answers = [_spans(answer) for answer in doc["answers"]]
        yield _drop_row(doc["query_id"], doc["passage"], doc["question"], answers)
    elif "passage" in values and "question" in values:
        yield need(values, "query_id", "passage", "question", "answer", "validated_answers")
    else:
        for entry in values.values():
            for qa in entry["qa_pairs"]:
                answers = [qa["answer"], *qa.get("validated_answers", [])]
                yield _drop_row(qa["query_id"], entry["passage"], qa["question"], answers)


def _spans(answer: Any) -> dict[str, Any]:
    words = [answer] if isinstance(answer, str) else list(answer)
    return {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": words}


def _drop_row(name: str, passage: str, question: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, *validated = ({part: answer[part] for part in ("number", "date", "spans")} for answer in answers)
    listed = {part: [answer[part] for answer in validated] for part in ("number", "date", "spans")}
    row = {"query_id": name, "passage": text(passage), "question": text(question)}
    return row | {"answer": first, "validated_answers": listed}


def coqa(values: Any) -> Rows:
    """CoQA: a conversation up to its last question, as lm-eval asks it. Of OLMES each question with those before it."""
    if "doc" in values:
        doc = values["doc"]
        turn = int(doc["id"].rpartition("_turn")[2])
        before = doc["previous_qa"][:turn]
        questions = [entry["question"] for entry in before] + [doc["question"]]
        answers = [entry["answer"] for entry in before]
        yield _conversation(doc["story"], questions, [answers + [answer] for answer in dict.fromkeys(doc["answers"])])
        return
    for entry in values.get("data", [values]):
        if isinstance(entry["questions"], dict):
            yield entry
            continue
        questions = [turn["input_text"] for turn in entry["questions"]]
        lists = [entry["answers"], *entry.get("additional_answers", {}).values()]
        yield _conversation(entry["story"], questions, [[turn["input_text"] for turn in turns] for turns in lists])


def _conversation(story: str, questions: list[str], answers: list[list[str]]) -> dict[str, Any]:
    first, *rest = answers
    if not questions or len(first) != len(questions):
        raise ValueError("a conversation has as many answers as questions")
    return {
        "story": text(story),
        "questions": {"input_text": questions},
        "answers": {"input_text": first},
        # The columns of a table are the same in all rows; the hub has three, too.
        "additional_answers": {
            str(number): {"input_text": rest[number] if number < len(rest) else first} for number in range(3)
        },
    }


# ---- prompts whose answers are given, for the effects of layers ----


def math_prompts(values: Any) -> Rows:
    """MATH as Csordás et al. (2025) read it; the level is the number in "Level 3"."""
    level = values["level"]
    yield {
        "prompt": f"Problem: {text(values['problem'])}\nAnswer:",
        "answer": f" {text(values['solution'])}",
        "level": str(level).removeprefix("Level "),
    }


def mquake_prompts(values: Any) -> Rows:
    """MQuAKE: the first form of the original question, its original answer, and the number of its hops."""
    hops = len(values["orig"]["triples"] if "triples" in values["orig"] else values["single_hops"])
    yield {"prompt": text(values["questions"][0]), "answer": f" {text(values['answer'])}", "hops": str(hops)}


def gsm8k_prompts(values: Any) -> Rows:
    yield {"prompt": f"Question: {text(values['question'])}\nAnswer:", "answer": f" {text(values['answer'])}"}
