"""The evidence sentences keep their promises: labels point at the right words, classes and halves are balanced."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

Item = dict[str, Any]

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "assets" / "sentences.json").read_text(encoding="utf-8")
)
EVIDENCE = ("agreement", "meaning_only", "object_verb", "previous_word", "dependencies", "similarity")
HALVES = {"select", "held_out"}
WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")

# Written apart from the labels, so that a wrong antecedent cannot agree with itself.
NOUNS_BY_PRONOUN = {
    "he": """Tom king boy Peter man uncle John father David prince brother Paul James Robert Daniel Frank Henry Simon
        Michael Adam Mark George""",
    "she": """Mary queen girl Anna mother princess sister aunt Susan Emma Lucy Sarah Jane Laura Helen woman Julia Kate
        Rachel Linda Emily Maria grandmother Eva Nancy""",
    "it": """car letter ball rain window key book storm bus dog train lamp cat truck bear song horse phone cup door
        bird house soup boat cake wolf tree kitchen castle coin poem museum hammer tile knife rope stone blanket bed
        fire candle rock fox rabbit bottle bag""",
    "they": """dishes birds boxes walls girls women horses children potatoes boys chairs dogs letters men bags soldiers
        teachers wolves neighbors students books parents plates stars shoes mice apples twins ducks curtains cows
        sheep guards visitors""",
    "he or she": "teacher driver",
}
KIND_OF = {noun: kind for kind, nouns in NOUNS_BY_PRONOUN.items() for noun in nouns.split()}

CLOSED_CLASS = {
    relation: frozenset(words.split())
    for relation, words in {
        "det": "the a an this that these those every each no some any which what",
        "aux": "has have had is are was were will would can could may might must should do does did",
        "poss": "my your his her its our their whose",
        "prep": """in on at to of from with without by near under over behind before after during through across along
            between beyond towards into onto since for above""",
    }.items()
}
REQUIRED_RELATIONS = ("det", "nsubj", "dobj", "pobj", "amod", "poss", "prep", "aux")


def words_of(item: Item) -> list[str]:
    return WORD.findall(item["text"])


def arcs_of(relation: str) -> list[tuple[Item, Item]]:
    return [(item, arc) for item in DATA["dependencies"] for arc in item["arcs"] if arc["relation"] == relation]


def is_near(item: Item) -> bool:
    return bool(item["antecedent"] > item["other"])


def assert_halves_equal(items: list[Item]) -> None:
    counts = Counter(item["half"] for item in items)
    assert counts["select"] == counts["held_out"] == len(items) / 2


def grouped(items: list[Item], *keys: str) -> dict[tuple[Any, ...], list[Item]]:
    groups: dict[tuple[Any, ...], list[Item]] = defaultdict(list)
    for item in items:
        groups[tuple(item[key] for key in keys)].append(item)
    return dict(groups)


def test_the_file_says_who_wrote_it_and_under_which_licence() -> None:
    assert DATA["author"] == "The Headscope project"
    assert DATA["licence"] == "CC0-1.0, written for Headscope"
    assert DATA["word_pattern"] == WORD.pattern
    assert set(DATA["fields"]) == {*EVIDENCE, "examples"}
    assert len(DATA["description"]) > 50


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("agreement", 80),
        ("meaning_only", 40),
        ("object_verb", 80),
        ("previous_word", 30),
        ("dependencies", 120),
        ("similarity", 40),
    ],
)
def test_each_list_is_large_enough_and_halved(name: str, least: int) -> None:
    items = DATA[name]
    assert len(items) >= least
    assert {item["half"] for item in items} == HALVES
    assert_halves_equal(items)


def test_no_sentence_appears_twice_in_or_across_lists() -> None:
    texts = [item["text"] for name in (*EVIDENCE, "examples") for item in DATA[name]]
    texts += [item["swap"]["text"] for item in DATA["examples"] if "swap" in item]
    folded = Counter(" ".join(WORD.findall(text.lower())) for text in texts)
    assert [text for text, count in folded.items() if count > 1] == []


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_is_plain_one_sentence_text(name: str) -> None:
    for item in DATA[name]:
        text = item["text"]
        assert text.isascii(), text
        assert re.fullmatch(r"[A-Z][^.?!\n]*[.?!]", text), text
        assert "  " not in text, text


@pytest.mark.parametrize("name", ["agreement", "meaning_only", "object_verb"])
def test_every_index_points_at_its_word(name: str) -> None:
    labels = ("object", "verb") if name == "object_verb" else ("pronoun", "antecedent", "other")
    for item in DATA[name]:
        words = words_of(item)
        for label in labels:
            assert words[item[label]] == item[f"{label}_word"], item
        assert len({item[label] for label in labels}) == len(labels)


class TestPronounSentences:
    @pytest.mark.parametrize("name", ["agreement", "meaning_only"])
    def test_both_nouns_and_no_other_known_noun_stand_before_the_only_pronoun(self, name: str) -> None:
        for item in DATA[name]:
            words = words_of(item)
            before = [i for i, word in enumerate(words[: item["pronoun"]]) if word in KIND_OF]
            assert before == sorted([item["antecedent"], item["other"]]), item
            assert [w for w in words if w.lower() in {"he", "she", "it", "they"}] == [item["pronoun_word"]], item

    def test_only_the_antecedent_agrees(self) -> None:
        for item in DATA["agreement"]:
            assert KIND_OF[item["antecedent_word"]] == item["pronoun_word"], item
            assert item["pronoun_word"] not in KIND_OF[item["other_word"]].split(" or "), item

    def test_both_nouns_agree_where_only_meaning_decides(self) -> None:
        for item in DATA["meaning_only"]:
            assert KIND_OF[item["antecedent_word"]] == KIND_OF[item["other_word"]] == item["pronoun_word"], item

    def test_the_noun_table_lists_each_noun_once(self) -> None:
        listed = [noun for nouns in NOUNS_BY_PRONOUN.values() for noun in nouns.split()]
        assert len(listed) == len(set(listed))
        used = {item[key] for name in ("agreement", "meaning_only") for item in DATA[name]
                for key in ("antecedent_word", "other_word")}  # fmt: skip
        assert used == set(listed)

    def test_each_pronoun_has_twenty_and_the_nearest_noun_is_right_half_the_time(self) -> None:
        groups = grouped(DATA["agreement"], "pronoun_word")
        assert set(groups) == {("he",), ("she",), ("it",), ("they",)}
        for items in groups.values():
            assert len(items) >= 20
            near = [item for item in items if is_near(item)]
            assert len(near) * 2 == len(items)
            assert_halves_equal(near)
            assert_halves_equal([item for item in items if not is_near(item)])

    def test_connectives_vary(self) -> None:
        after = Counter(words_of(item)[item["pronoun"] - 1] for item in DATA["agreement"])
        assert len(after) >= 8
        assert after.most_common(1)[0][1] <= len(DATA["agreement"]) / 3
        assert {"because", "when", "but", "so", "then"} <= set(after)

    def test_twins_flip_the_answer_and_stay_in_one_half(self) -> None:
        pairs = grouped(DATA["meaning_only"], "pair")
        for first, second in pairs.values():
            assert first["half"] == second["half"]
            assert (first["antecedent"], first["other"]) == (second["other"], second["antecedent"])
            cut = first["pronoun"] + 1
            assert words_of(first)[:cut] == words_of(second)[:cut]
            assert is_near(first) != is_near(second)

    def test_meaning_halves_hold_the_same_pronouns(self) -> None:
        groups = grouped(DATA["meaning_only"], "pronoun_word")
        assert set(groups) == {("he",), ("she",), ("it",), ("they",)}
        for items in groups.values():
            assert_halves_equal(items)


class TestObjectVerb:
    def test_offsets_are_the_distance_to_the_verb_and_equally_frequent(self) -> None:
        for item in DATA["object_verb"]:
            assert item["object"] - item["verb"] == item["offset"], item
        counts = Counter(item["offset"] for item in DATA["object_verb"])
        assert counts == {1: 20, 2: 20, 3: 20, 4: 20}

    def test_each_offset_is_halved(self) -> None:
        for items in grouped(DATA["object_verb"], "offset").values():
            assert_halves_equal(items)

    def test_no_preposition_stands_between_verb_and_object(self) -> None:
        for item in DATA["object_verb"]:
            between = words_of(item)[item["verb"] + 1 : item["object"]]
            assert CLOSED_CLASS["prep"].isdisjoint(between), item
            assert all(word.isalpha() for word in between), item


def test_plain_sentences_have_eight_to_twenty_five_words() -> None:
    for item in DATA["previous_word"]:
        spoken = [word for word in words_of(item) if word[0].isalnum()]
        assert len(spoken) >= 8, item
        assert len(words_of(item)) <= 25, item
    lengths = {len(words_of(item)) for item in DATA["previous_word"]}
    assert len(lengths) >= 6


class TestDependencies:
    def test_arcs_point_at_their_words_and_a_word_has_one_head(self) -> None:
        for item in DATA["dependencies"]:
            words = words_of(item)
            for arc in item["arcs"]:
                assert words[arc["dependent"]] == arc["dependent_word"], item
                assert words[arc["head"]] == arc["head_word"], item
                assert arc["dependent"] != arc["head"], item
                assert arc["dependent_word"].isalpha() or "'" in arc["dependent_word"], item
            dependents = [arc["dependent"] for arc in item["arcs"]]
            assert len(dependents) == len(set(dependents)), item
            assert any(arc["relation"] == "nsubj" for arc in item["arcs"]), item

    @pytest.mark.parametrize("relation", REQUIRED_RELATIONS)
    def test_each_relation_is_frequent_halved_and_no_single_distance_carries_it(self, relation: str) -> None:
        arcs = arcs_of(relation)
        assert len(arcs) >= 40
        offsets = Counter(arc["head"] - arc["dependent"] for _, arc in arcs)
        assert len(offsets) >= 3
        assert offsets.most_common(1)[0][1] <= 0.6 * len(arcs)
        selected = sum(item["half"] == "select" for item, _ in arcs)
        assert 0.45 * len(arcs) <= selected <= 0.55 * len(arcs)

    def test_only_declared_relations_occur(self) -> None:
        seen = {arc["relation"] for item in DATA["dependencies"] for arc in item["arcs"]}
        assert seen == {*REQUIRED_RELATIONS, "advmod"}

    @pytest.mark.parametrize("relation", sorted(CLOSED_CLASS))
    def test_closed_classes_hold_only_their_words(self, relation: str) -> None:
        for item, arc in arcs_of(relation):
            word = arc["dependent_word"].lower()
            possessor = relation == "poss" and word.endswith("'s")
            assert possessor or word in CLOSED_CLASS[relation], item

    def test_every_determiner_possessive_and_preposition_is_labelled_as_one(self) -> None:
        for item in DATA["dependencies"]:
            relation_of = {arc["dependent"]: arc["relation"] for arc in item["arcs"]}
            for index, word in enumerate(words_of(item)):
                for relation in ("det", "poss", "prep"):
                    if word.lower() in CLOSED_CLASS[relation]:
                        assert relation_of.get(index) == relation, (word, item)
                if word.endswith("'s"):
                    assert relation_of.get(index) == "poss", (word, item)

    def test_possessors_stand_before_what_is_owned(self) -> None:
        assert all(arc["dependent"] < arc["head"] for _, arc in arcs_of("poss"))

    def test_modifiers_stand_before_their_noun_with_no_other_labelled_noun_between(self) -> None:
        nominal = {"nsubj", "dobj", "pobj"}
        for item in DATA["dependencies"]:
            relation_of = {arc["dependent"]: arc["relation"] for arc in item["arcs"]}
            for arc in item["arcs"]:
                if arc["relation"] not in {"det", "amod"}:
                    continue
                assert relation_of[arc["head"]] in nominal | {"poss"}, item
                between = {relation_of.get(i) for i in range(arc["dependent"] + 1, arc["head"])}
                assert between.isdisjoint({*nominal, "poss", "prep"}), item
                assert arc["head"] > arc["dependent"], item

    def test_subjects_objects_and_auxiliaries_share_one_verb_and_pobj_hangs_on_a_prep(self) -> None:
        for item in DATA["dependencies"]:
            heads = defaultdict(set)
            for arc in item["arcs"]:
                heads[arc["relation"]].add(arc["head"])
            assert len(heads["nsubj"]) == 1, item
            assert heads["dobj"] | heads["aux"] <= heads["nsubj"], item
            prepositions = {arc["dependent"] for arc in item["arcs"] if arc["relation"] == "prep"}
            assert heads["pobj"] == prepositions, item
            nouns = {arc["dependent"] for arc in item["arcs"] if arc["relation"] in {"nsubj", "dobj", "pobj"}}
            assert heads["prep"] <= heads["nsubj"] | nouns, item
            assert heads["nsubj"].isdisjoint(arc["dependent"] for arc in item["arcs"]), item


def test_topics_are_equally_large_and_halved() -> None:
    groups = grouped(DATA["similarity"], "topic")
    assert len(groups) >= 6
    assert len({len(items) for items in groups.values()}) == 1
    for items in groups.values():
        assert len(items) >= 4
        assert_halves_equal(items)


class TestExamples:
    def test_each_has_a_caption_a_bundled_model_and_its_own_id(self) -> None:
        ids = [item["id"] for item in DATA["examples"]]
        assert len(ids) == len(set(ids))
        for item in DATA["examples"]:
            assert item["model"] in {"all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"}
            assert len(item["caption"].split()) >= 5, item["text"]
            assert "understand" not in item["caption"].lower()
            assert "half" not in item

    def test_the_known_examples_open_in_their_model(self) -> None:
        model_of = {item["text"]: item["model"] for item in DATA["examples"]}
        assert model_of["Alice fed the cats because they were hungry."] == "all-MiniLM-L6-v2"
        assert model_of["The cat sat on the mat because it was tired."] == "all-MiniLM-L6-v2"
        assert "The keys to the old cabinet are on the table." in model_of
        for text in (
            "The cat sat on the mat that the dog chased.",
            "The cat that the dog chased sat on the mat.",
        ):
            assert model_of[text] == "SmolLM2-135M-Instruct"

    def test_the_swap_says_which_word_changes_and_into_which_sentence(self) -> None:
        item = next(item for item in DATA["examples"] if "swap" in item)
        swap = item["swap"]
        assert swap == {"from": "they", "to": "she", "text": "Alice fed the cats because she was kind."}
        place = words_of(item).index(swap["from"])
        assert WORD.findall(swap["text"])[: place + 1] == [*words_of(item)[:place], swap["to"]]

    def test_the_trap_caption_says_that_the_link_alone_proves_nothing(self) -> None:
        item = next(item for item in DATA["examples"] if item["text"].endswith("mat that the dog chased."))
        words = words_of(item)
        assert words[words.index("that") - 1] == "mat"
        assert "“mat” stands right before “that”" in item["caption"]
        assert item["caption"].endswith("The link alone proves nothing.")

    def test_there_is_a_question_a_repeated_name_an_emoji_and_another_script(self) -> None:
        by_id = {item["id"]: item["text"] for item in DATA["examples"]}
        assert by_id["question"].endswith("?")
        names = Counter(word for word in WORD.findall(by_id["repeated-name"]) if word.istitle())
        assert max(names.values()) >= 2
        assert any(ord(char) > 0x1F000 for char in by_id["emoji"])
        letters = [char for char in by_id["other-script"] if char.isalpha()]
        assert letters
        assert all(ord(char) > 0x2FF for char in letters)
