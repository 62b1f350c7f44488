"""Rows of questions with written answers: reading comprehension, closed books, arithmetic and word problems."""

from __future__ import annotations

import re
from typing import Any

from hybridlab.data.benchmarks.rows import Rows, need, rows_of, text, texts


def number_text(value: Any) -> str:
    """A number as one writes it: 43 for 43.0."""
    number = float(str(value).replace(",", ""))
    return str(int(number)) if number == int(number) else str(number)


@rows_of("word problem")
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
        found = re.fullmatch(r"\s*(-?[\d,]*\.?\d+)\s*(\([^)]*\))?\s*", answer)
        answer = found[1] if found else None
    if answer is not None:
        yield {"question": text(question).strip(), "answer": number_text(answer)}


@rows_of("asdiv")
def asdiv(values: Any) -> Rows:
    """ASDiv as lm-eval's own task reads it."""
    names = {"body": "Body", "question": "Question", "answer": "Answer", "solution_type": "Solution-Type"}
    yield {name: text(values.get(name, values.get(written))) for name, written in names.items()}


@rows_of("trivia")
def trivia(values: Any) -> Rows:
    """TriviaQA as released, of the hub, and of MosaicML."""
    if "Data" in values:
        for entry in values["Data"]:
            answer = entry["Answer"]
            yield {"question": entry["Question"], "answer": {"value": answer["Value"], "aliases": answer["Aliases"]}}
    elif "context" in values:
        asked = text(values["context"]).removeprefix("Question: ").removesuffix("\nAnswer:")
        yield {"question": asked, "answer": {"value": values["answer"], "aliases": values["aliases"]}}
    else:
        row = need(values, "question", "answer")
        answer = need(row["answer"], "value", "aliases")
        yield {**row, "answer": {"value": text(answer["value"]), "aliases": texts(answer["aliases"])}}


@rows_of("web questions")
def web_questions(values: Any) -> Rows:
    question = values["qText"] if "qText" in values else values["question"]
    if not values["answers"]:
        raise ValueError("it has no answer")
    yield {"question": text(question), "answers": texts(values["answers"])}


@rows_of("open questions")
def open_questions(values: Any) -> Rows:
    """Natural Questions: a question and its accepted answers."""
    row = need(values, "question", "answer")
    yield {"question": text(row["question"]), "answer": texts(row["answer"])}


@rows_of("webqa")
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


@rows_of("squad")
def squad(values: Any) -> Rows:
    """SQuAD, TyDiQA GoldP and QuAC in SQuAD's layout, requests of OLMES, and rows of the hub.

    answers: the accepted ones, none if the question has no answer. history: the questions before it with answers.
    """
    if "doc" in values:
        doc = values["doc"]
        context, _, asked = text(doc["query"]).partition("\nQuestion: ")
        context = context.partition("Background: ")[2].strip()
        yield _asked(doc["id"], context, asked.removesuffix("\nAnswer:"), doc["answers_text"], [])
    elif "data" in values:
        for article in values["data"]:
            for paragraph in article["paragraphs"]:
                yield from _paragraph(paragraph)
    else:
        row = need(values, "context", "question")
        answers = values["answers"]
        found = need(answers, "text")["text"]
        # A question without an answer has an empty list.
        yield _asked(str(values.get("id", "")), **row, answers=texts(found) if found != [] else [], history=[])


def _paragraph(paragraph: dict[str, Any]) -> Rows:
    history: list[str] = []
    # QuAC marks a question without an answer by this word at the end of its passages.
    context = text(paragraph["context"]).removesuffix("CANNOTANSWER").rstrip()
    for asked in paragraph["qas"]:
        answers = [] if asked.get("is_impossible") else [text(a["text"]) for a in asked["answers"]]
        yield _asked(str(asked["id"]), context, asked["question"], answers, list(history))
        first = asked.get("orig_answer", asked["answers"][0] if asked["answers"] else {"text": ""})["text"]
        history.append(f"Q: {asked['question']}\nA: {first}\n")


def _asked(name: str, context: str, question: str, answers: list[str], history: list[str]) -> dict[str, Any]:
    answers = [answer for answer in dict.fromkeys(answers) if answer != "CANNOTANSWER"]
    return {"id": name, "context": text(context), "question": text(question), "answers": answers, "history": history}


@rows_of("tydiqa")
def tydiqa(values: Any) -> Rows:
    """TyDiQA GoldP as lm-eval's own tasks read it."""
    for row in squad(values):
        yield {**row, "answers": {"text": row["answers"]}}


@rows_of("drop")
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
            for asked in entry["qa_pairs"]:
                answers = [asked["answer"], *asked.get("validated_answers", [])]
                yield _drop_row(asked["query_id"], entry["passage"], asked["question"], answers)


def _spans(answer: Any) -> dict[str, Any]:
    words = [answer] if isinstance(answer, str) else list(answer)
    return {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": words}


def _drop_row(name: str, passage: str, question: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = ({part: answer[part] for part in ("number", "date", "spans")} for answer in answers)
    listed = {part: [answer[part] for answer in others] for part in ("number", "date", "spans")}
    return {"query_id": name, "passage": text(passage), "question": text(question)} | {
        "answer": first,
        "validated_answers": listed,
    }


@rows_of("coqa")
def coqa(values: Any) -> Rows:
    """CoQA: a conversation up to its last question, as lm-eval asks it. Of OLMES each question with those before it."""
    if "doc" in values:
        doc = values["doc"]
        turn = int(doc["id"].rpartition("_turn")[2])
        before = doc["previous_qa"][:turn]
        asked = [entry["question"] for entry in before] + [doc["question"]]
        told = [entry["answer"] for entry in before]
        yield _conversation(doc["story"], asked, [told + [answer] for answer in dict.fromkeys(doc["answers"])])
        return
    for entry in values.get("data", [values]):
        if isinstance(entry["questions"], dict):
            yield entry
            continue
        asked = [turn["input_text"] for turn in entry["questions"]]
        lists = [entry["answers"], *entry.get("additional_answers", {}).values()]
        yield _conversation(entry["story"], asked, [[turn["input_text"] for turn in turns] for turns in lists])


def _conversation(story: str, asked: list[str], answers: list[list[str]]) -> dict[str, Any]:
    first, *others = answers
    if not asked or len(first) != len(asked):
        raise ValueError("a conversation has as many answers as questions")
    return {
        "story": text(story),
        "questions": {"input_text": asked},
        "answers": {"input_text": first},
        # The columns of a table are the same in all rows; the hub has three, too.
        "additional_answers": {
            str(number): {"input_text": others[number] if number < len(others) else first} for number in range(3)
        },
    }


# ---- prompts whose answers are given, for the effects of layers ----


@rows_of("math prompts")
def math_prompts(values: Any) -> Rows:
    """MATH as Csordás et al. (2025) read it; the level is the number in "Level 3"."""
    level = values["level"]
    yield {
        "prompt": f"Problem: {text(values['problem'])}\nAnswer:",
        "answer": f" {text(values['solution'])}",
        "level": str(level).removeprefix("Level "),
    }


@rows_of("mquake prompts")
def mquake_prompts(values: Any) -> Rows:
    """MQuAKE: the first form of the original question, its original answer, and the number of its hops."""
    hops = len(values["orig"]["triples"] if "triples" in values["orig"] else values["single_hops"])
    yield {"prompt": text(values["questions"][0]), "answer": f" {text(values['answer'])}", "hops": str(hops)}


@rows_of("gsm8k prompts")
def gsm8k_prompts(values: Any) -> Rows:
    yield {"prompt": f"Question: {text(values['question'])}\nAnswer:", "answer": f" {text(values['answer'])}"}
