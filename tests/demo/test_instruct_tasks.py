"""The instruct domain: splits, references and every check."""

import json
from typing import Any

import pytest

from domains import instruct_tasks
from domains.instruct_checks import KINDS, unmet
from domains.instruct_content import TOPICS
from domains.splits import SIZES, normalise

Splits = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return instruct_tasks.generate(0)


def test_same_seed_gives_same_items_and_another_seed_does_not(splits: Splits) -> None:
    assert instruct_tasks.generate(0) == splits
    assert instruct_tasks.generate(1) != splits


def test_sizes(splits: Splits) -> None:
    assert {name: len(items) for name, items in splits.items()} == SIZES


def test_no_prompt_and_no_problem_occurs_twice(splits: Splits) -> None:
    items = [item for part in splits.values() for item in part]
    assert len({normalise(item["prompt"]) for item in items}) == len(items)
    assert len({item["problem"] for item in items}) == len(items)


def test_unseen_templates_occur_only_in_test(splits: Splits) -> None:
    unseen = {template.name for template in instruct_tasks.UNSEEN}
    for name, items in splits.items():
        assert all((item["template"] in unseen) == item["unseen"] for item in items)
        assert {item["template"] for item in items if item["unseen"]} == (
            unseen if name == "test" else set()
        )


def test_there_is_enough_variety() -> None:
    assert len(instruct_tasks.UNSEEN) >= 10
    assert len(instruct_tasks.SEEN) + len(instruct_tasks.UNSEEN) >= 40
    assert len({topic.name for topic in TOPICS}) == len(TOPICS) >= 120
    for topic in TOPICS:
        assert len(set(topic.points)) == len(topic.points) >= 8
        assert all(not set(point[:-1]) & set(',.!?;:"') for point in topic.points)


def test_every_kind_in_unseen_templates_can_be_learned_from_seen_ones() -> None:
    parts = [
        {part for template in group for part in template.name.split("+")}
        for group in (instruct_tasks.SEEN, instruct_tasks.UNSEEN)
    ]
    assert parts[1] <= parts[0]


def test_every_kind_occurs_in_train_and_in_test(splits: Splits) -> None:
    for name in ("train", "test"):
        found = {c["kind"] for item in splits[name] for c in item["constraints"]}
        assert found == set(KINDS)


def test_references_meet_their_constraints_also_after_json(splits: Splits) -> None:
    for items in splits.values():
        for item in items:
            stored = json.loads(json.dumps(item))
            assert unmet(stored["constraints"], item["response"]) == [], item["id"]
            assert instruct_tasks.check(stored, "\n" + item["response"] + " \n")
            assert not instruct_tasks.check(stored, "")


def test_lengths_fit_the_training_budget(splits: Splits) -> None:
    low, high = instruct_tasks.TOKEN_BOUNDS
    sizes = [
        instruct_tasks.estimate_tokens(item["prompt"] + item["response"])
        for items in splits.values()
        for item in items
    ]
    assert low <= min(sizes)
    assert max(sizes) <= high


# Per kind: the parameters, a response that is right and one that is wrong.
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("list", {"marker": "number", "n": 2}, "Tips:\n1. Run.\n2. Rest.", "1. Run."),
    ("list", {"marker": "number", "n": 2}, "1. Run.\n2. Rest.", "2. Run.\n1. Rest."),
    ("list", {"marker": "number", "n": 2}, "1. Run.\n2. Rest.", "1. Run. 2. Rest."),
    ("list", {"marker": "dash", "n": 2}, "- Run.\n- Rest.", "- Run.\n- Rest.\n- Eat."),
    ("list", {"marker": "star", "n": 2}, "* Run.\n* Rest.", "- Run.\n- Rest."),
    ("list", {"marker": "letter", "n": 2}, "A) RUN.\nB) REST.", "a) Run.\nc) Rest."),
    ("list", {"marker": "step", "n": 2}, "Step 1: Run.\nSTEP 2: Rest.", "1. Run.\n2. Rest."),
    ("sentences", {"n": 2}, "Run far. Rest well!", "Run far and rest well."),
    ("one_paragraph", {}, "Run. Rest.", "Run.\nRest."),
    ("one_paragraph", {}, "Run. Rest.", "1. Run."),
    ("plain_lines", {"n": 2}, "Run.\n\nRest.", "Run. Rest."),
    ("question_answer", {}, "Q: Why run?\nA: It helps.", "Q: Why run\nA: It helps."),
    ("question_answer", {}, "Q: Why run?\nA: It helps.", "Q: Why run? A: It helps."),
    ("separator", {"line": "***", "n": 2}, "Run.\n***\nRest.", "Run.\nRest."),
    ("separator", {"line": "***", "n": 2}, "Run.\n***\nRest.", "Run.\nRest.\n***"),
    ("include", {"words": ["run", "rest"]}, "Rest after a run.", "Rest after running."),
    ("exclude", {"word": "run"}, "Running is fine.", "Run far."),
    ("lower", {}, "run 3 miles.", "Run 3 miles."),
    ("upper", {}, "RUN 3 MILES.", "RUN 3 MILEs."),
    ("title", {}, "ON RUNNING\nRun far.", "On running\nRun far."),
    ("title", {}, "ON RUNNING\nRun far.", "ON RUNNING"),
    ("greeting", {"word": "Hej", "name": "Leo"}, "Hej Leo,\nRun.", "Hola Leo,\nRun."),
    ("greeting", {"word": "Hej", "name": "Leo"}, "Hej, Leo!\nRun.", "Hej Ben!\nRun."),
    ("closing", {"phrase": "Stay curious"}, "Run.\nStay curious.", "Stay curious.\nRun."),
    ("closing", {"phrase": "Stay curious"}, "Run.\nStay curious", "Run. Stay curious"),
    ("start", {"word": "Surely"}, "Surely, run.", "Run, surely."),
    ("max_words", {"marker": "dash", "n": 3}, "- Run very far.", "- Run really very far."),
    ("max_words", {"marker": "dash", "n": 3}, "- Run.", "Run."),
    ("total_words", {"n": 3}, "Run very far.", "Run really very far."),
    ("no_commas", {}, "Run and rest.", "Run, then rest."),
    ("question_end", {}, "Run. Ready?", "Ready? Run."),
    ("quoted", {}, '"Run far."', '"Run far.'),
    ("quoted", {}, '"Run far."', '"Run" or "rest"'),
    ("first_line", {"line": "Topic: run"}, "Topic: run\n- Far.", "Run\n- Far."),
    ("point_end", {"marker": "dash", "mark": "!"}, "Hi.\n- Run!\n- Rest!", "- Run!\n- Rest."),
    ("tags", {"tag": "note"}, "<note>Run.</note>", "<note>Run."),
    ("tags", {"tag": "note"}, "<note>\nRun.\n</note>", "<note></note>"),
    ("postscript", {}, "Run.\nP.S. Rest.", "P.S. Rest.\nRun."),
]
JSON_SHAPE = {"keys": ["topic", "tips"], "list_key": "tips", "n": 2}
RIGHT_JSON = '{"tips": ["Run.", "Rest."], "topic": "sport"}'
CASES += [
    ("json", JSON_SHAPE, RIGHT_JSON, wrong)
    for wrong in (
        "Run.",
        "[1]",
        '{"tips": ["Run.", "Rest."]}',
        '{"tips": ["Run."], "topic": "sport"}',
        '{"tips": ["Run.", 2], "topic": "sport"}',
        '{"tips": "Run. Rest.", "topic": "sport"}',
        '{"tips": ["Run.", "Rest."], "topic": 3}',
        RIGHT_JSON + " Done.",
    )
]


@pytest.mark.parametrize(("kind", "parameters", "right", "wrong"), CASES)
def test_check_tells_right_from_wrong(
    kind: str, parameters: dict[str, Any], right: str, wrong: str
) -> None:
    constraint = {"kind": kind, **parameters}
    other = {"kind": "total_words", "n": 99}
    assert unmet([constraint, other], f"\n{right}  ") == []
    assert unmet([constraint, other], wrong) == [kind]


def test_cases_cover_every_kind() -> None:
    assert {case[0] for case in CASES} == set(KINDS)


@pytest.mark.parametrize("fence", ["```json", "```"])
def test_json_may_stand_in_a_fence(fence: str) -> None:
    assert unmet([{"kind": "json", **JSON_SHAPE}], f"{fence}\n{RIGHT_JSON}\n```") == []


@pytest.mark.parametrize("constraint", [{"kind": "rhyme"}, {}])
def test_unknown_kind_is_refused(constraint: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unknown constraint kind"):
        unmet([constraint], "Run.")
