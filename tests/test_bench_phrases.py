"""The phrase benchmark: what it reads, how it scores, what it prints."""

import json
import random
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from voxagent.benchmarks import phrase_costs, phrase_set, phrases, spoken, stalls
from voxagent.benchmarks.phrase_set import PhraseRow, SpokenRow
from voxagent.benchmarks.phrases import by_character, by_token, faults, fed, floor
from voxagent.benchmarks.splitters import Trail, VoxagentSplitter
from voxagent.cli import app
from voxagent.phrases import PhraseSplitter

run = CliRunner()


class Scripted:
    """Releases given offsets as soon as enough was fed, and others at the end."""

    def __init__(self, cuts, last=()):
        self.cuts, self.last, self.size = list(cuts), list(last), 0

    def feed(self, chunk):
        self.size += len(chunk)
        ready = [cut for cut in self.cuts if cut <= self.size]
        self.cuts = [cut for cut in self.cuts if cut > self.size]
        return ready

    def finish(self):
        return [*self.cuts, *self.last]


def phrase_row(text="One two. Three four. Five", must=(8, 20), may=(), alt=(), short=(), name="a", **fields):
    return PhraseRow(name, fields.get("lang", "en"), fields.get("kind", "plain"), text, must, may, alt, short)


def figures(rows, cuts):
    return phrases.tables(phrases.score(rows, lambda language: Scripted(cuts)))["all"]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


PHRASE = {"id": "p1", "lang": "en", "kind": "plain", "text": "One two. Three four.", "must": [8], "may": []}
SPOKEN = {"id": "s1", "lang": "en", "kind": "money", "text": "It is $5.", "spoken": ["It is five dollars."]}


# Feeding.


def test_cuts_move_left_over_whitespace_and_the_edges_are_dropped():
    text = "One. \n Two. Three. "
    found = fed(Scripted([0, 7, 12], [18, 19]), text, by_character(text))
    assert found.cuts == {4, 11}
    assert found.first_chars == 7


def test_nothing_released_before_the_end_waits_for_the_whole_text():
    text = "One. Two."
    assert fed(Scripted([], [4, 9]), text, by_character(text)) == phrases.Fed(frozenset({4}), 9)


def test_whitespace_alone_is_no_release_but_the_end_of_the_text_is_one():
    text = "  One. "
    assert fed(Scripted([2, 6]), text, by_character(text)) == phrases.Fed(frozenset(), 6)


def test_a_cut_beyond_the_text_fed_is_refused():
    class Prophet(Scripted):
        def feed(self, chunk):
            return [9]

    with pytest.raises(ValueError, match="a cut at 9 after 1 characters"):
        fed(Prophet([]), "One. Two. Three", by_character("One. Two. Three"))


def test_tokens_have_three_to_five_characters_and_follow_from_the_id():
    text = "The same id gives the same tokens."
    rng = random.Random("ph-1")
    first = [len(token) for token in by_token(text, "ph-1")]
    assert "".join(by_token(text, "ph-1")) == text
    assert first[:-1] == [rng.randint(3, 5) for _ in first[:-1]]


# Scoring.


def test_wrong_missed_and_their_rates():
    found = figures([phrase_row(may=(3,))], [4, 8, 12])
    assert (found["cuts"], found["wrong"], found["must"], found["missed"]) == (3, 1, 2, 1)
    assert (found["wrong_rate"], found["missed_rate"], found["clean_rate"]) == (1 / 3, 0.5, 0)


def test_a_cut_at_the_alternative_satisfies_a_must():
    row = phrase_row("All done! \N{PARTY POPPER} Thank you.", must=(9,), may=(11,), alt=((9, 11),))
    assert faults(row, frozenset({11})) == ((), ())
    assert faults(row, frozenset({9})) == ((), ())
    assert faults(row, frozenset()) == ((), (9,))


def test_short_sentences_are_left_out_of_the_long_rate():
    found = figures([phrase_row(short=(8,))], [])
    assert (found["missed_rate"], found["missed_long_rate"]) == (1, 1)
    found = figures([phrase_row(short=(8,))], [20])
    assert (found["missed"], found["missed_rate"]) == (1, 0.5)
    assert (found["must_long"], found["missed_long"], found["missed_long_rate"]) == (1, 0, 0)


def test_the_floor_is_the_earliest_listed_cut_and_one_character():
    row = phrase_row(must=(20,), may=(8,))
    assert floor(row, by_character(row.text)) == 9
    assert floor(row, ["One two.", " Thr", "ee"]) == 12
    assert floor(phrase_row(must=(), may=()), by_character(row.text)) == len(row.text)


def test_rates_of_nothing_are_zero():
    found = figures([phrase_row(must=(), may=())], [])
    assert (found["wrong_rate"], found["missed_rate"], found["missed_long_rate"], found["cuts"]) == (0, 0, 0, 0)
    assert figures([], [])["n"] == 0


def test_rows_are_grouped_by_language_and_kind_and_the_worst_comes_first():
    rows = [
        phrase_row(name="good", kind="plain"),
        phrase_row(name="bad", lang="de", kind="list", must=(8, 14)),
        phrase_row(name="late", lang="de", must=(8, 20), may=(3,)),
    ]
    scores = phrases.score(rows, lambda language: Scripted([8, 20]))
    tables = phrases.tables(scores)
    assert {lang: found["n"] for lang, found in tables["by_lang"].items()} == {"de": 2, "en": 1}
    assert {kind: found["wrong"] for kind, found in tables["by_kind"].items()} == {"list": 1, "plain": 0}
    assert tables["cuts_equal"]
    found = phrases.worst(scores)
    assert [row["id"] for row in found] == ["bad", "late", "good"]
    assert (found[0]["wrong"], found[0]["missed"]) == ([" Three four.| Five"], ["e two. Three| four. Five"])


def test_cuts_that_follow_the_tokens_are_told():
    class Echo(Scripted):
        def feed(self, chunk):
            self.size += len(chunk)
            return [self.size]

    tables = phrases.tables(phrases.score([phrase_row()], lambda language: Echo([])))
    assert not tables["cuts_equal"]
    assert tables["all"]["wrong_rate_token"] != tables["all"]["wrong_rate"]


# Spoken forms.


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("en", "Twenty-one, p. M.!", "twenty one pm"),
        ("en", "It's the driver’s", "its the drivers"),
        ("en", "ﬁve ①", "five 1"),
        ("en", "a b c d", "abcd"),
        ("de", "STRASSE", "straße"),
        ("zh", "二 点 十、三", "二点十三"),
        ("th", "ยี่สิบ นาฬิกา.", "ยี่สิบนาฬิกา"),
        ("ru", "четвёртого", "четвертого"),
        ("ar", "مُوعِدٌ", "موعد"),
        ("ar", "موعـد", "موعد"),
        ("hi", "पढ़ना", "पढना"),
        ("hi", "हाँ", "हां"),
    ],
)
def test_what_the_key_does_not_tell_apart(language, one, other):
    assert spoken.key(one, language) == spoken.key(other, language)


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [("en", "one", "two"), ("en", "ab cd", "abcd"), ("en", "7 8", "78"), ("de", "für", "fur"), ("hi", "की", "कि")],
)
def test_what_the_key_tells_apart(language, one, other):
    assert spoken.key(one, language) != spoken.key(other, language)


def test_the_distance_is_to_the_nearest_variant_and_the_shorter_of_equally_near_ones():
    row = SpokenRow("s", "en", "plain", "x", ("one two three four", "one two", "five"))
    found = spoken.judge(row, "one three")
    assert (found.exact, found.edits, found.units, found.nearest) == (False, 1, 2, "one two")
    assert spoken.judge(row, "Five!").exact
    chinese = spoken.judge(SpokenRow("s", "zh", "plain", "x", ("二点十三",)), "二点三")
    assert (chinese.edits, chinese.units) == (1, 4)


def test_a_silent_text_is_scored_too():
    row = SpokenRow("s", "en", "emoji", "\N{PARTY POPPER}", ("",))
    assert spoken.judge(row, "").exact
    assert spoken.judge(row, "party popper").edits == 2


def test_spoken_rates_are_told_for_english_and_for_the_rest():
    rows = [
        SpokenRow("a", "en", "money", "It is $5.", ("It is five dollars.",)),
        SpokenRow("b", "en", "money", "It is $5.", ("It is a fiver.",)),
    ]
    found = spoken.measure(rows)
    assert found["spoken"] == {"en": 0.5, "other": None}
    assert found["spoken_detail"]["by_kind"]["money"]["n"] == 2
    assert [row["id"] for row in found["spoken_detail"]["worst"]] == ["b"]


# Tokens, cost, stalls.


def test_random_tokens_join_to_the_text():
    text = "Any cut of the same text gives the same phrases."
    for seed in range(20):
        assert "".join(phrase_costs.random_tokens(text, random.Random(seed))) == text


def test_ways_to_cut_are_spread_over_all_texts():
    rows = [phrase_row(name=str(index)) for index in range(3)]
    assert phrase_costs.tokens(rows, 7) == {"tokens_equal": True, "tokens_ways": 7, "tokens_differ": []}
    assert phrase_costs.tokens([], 7)["tokens_ways"] == 0


def test_costs_need_prose():
    assert phrase_costs.costs(["`code`", "# Heading"], 1000)["cost_us_per_char"] is None


def test_a_stall_is_placed_in_mid_clause_only():
    row = phrase_row("Take it, or leave it at 12:30 now then", must=(), may=(8, 11))
    assert list(stalls.places(row)) == [4, 16, 20, 24, 28, 32, 36]


def test_a_stall_releases_up_to_the_last_safe_word():
    text = "You can bring the small red card with you to"
    stall = stalls.run(PhraseSplitter("en"), text, 0.5)
    assert stall.releases
    assert not stall.underrun
    assert not stalls.releasable(text[stall.releases[-1] :])


def test_a_splitter_that_waits_too_long_underruns():
    text = "You can bring the small red card with you to"
    assert stalls.run(PhraseSplitter("en", stall_runway_s=0.05), text, 0.5).underrun


@pytest.mark.parametrize(
    ("pending", "safe"),
    [
        (" small red ca", True),
        (" the red", False),
        (" red, ca", False),
        (" red Ca", False),
        (' "small red ca', False),
        (" card", False),
        ("", False),
    ],
)
def test_what_counts_as_text_that_could_be_said(pending, safe):
    assert stalls.releasable(pending) is safe


# Reading.


def test_a_lone_half_of_a_set_brings_the_other_along(tmp_path):
    one = write(tmp_path / "phrases.x.jsonl", PHRASE)
    assert len(phrase_set.read([one]).spoken) == 0
    other = write(tmp_path / "spoken.x.jsonl", SPOKEN)
    for given in ([one], [other], [one, other], [tmp_path], [one, one, other]):
        gold = phrase_set.read(given)
        assert ([row.id for row in gold.phrases], [row.id for row in gold.spoken]) == (["p1"], ["s1"])
    mixed = write(tmp_path / "mixed.jsonl", SPOKEN, PHRASE | {"alt": [[8, 9]], "short": [8]})
    gold = phrase_set.read([mixed])
    assert (gold.phrases[0].alt, gold.phrases[0].short, len(gold.spoken)) == (((8, 9),), (8,), 1)


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("not json", "no JSON (Expecting value, column 1); write one JSON object a line"),
        ("[1]", "a row is a JSON object, not list"),
        (json.dumps(without(PHRASE, "must")), 'neither "must" nor "spoken"'),
        (json.dumps(without(PHRASE, "id")), '"id" is missing; give a string'),
        (json.dumps(without(PHRASE, "may")), '"may" is missing; give a list of offsets'),
        (json.dumps(SPOKEN | {"lang": 7}), '"lang" is a int; give a string'),
        (json.dumps(SPOKEN | {"text": ""}), '"text" is empty'),
        (json.dumps(SPOKEN | {"spoken": []}), "give at least one way to say the text"),
        (json.dumps(PHRASE | {"must": [20]}), "offsets lie between 1 and 19 here"),
        (json.dumps(PHRASE | {"may": [0]}), '"may" holds 0, outside the text'),
        (json.dumps(PHRASE | {"may": ["8"]}), "offsets are whole numbers"),
        (json.dumps(PHRASE | {"alt": [8]}), "give [[must, may], ..]"),
        (json.dumps(PHRASE | {"short": [99]}), '"short" holds 99'),
    ],
)
def test_a_bad_row_is_named_in_one_line_and_exits_with_2(tmp_path, line, cause):
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(PHRASE) + "\n\n" + line + "\n", encoding="utf-8")
    result = run.invoke(app, ["bench", "phrases", "--set", str(file), "--no-peers", "--json"])
    assert result.exit_code == 2
    assert f"{file}:3: " in result.stderr
    assert cause in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_set_that_is_not_there_is_named_in_one_line_and_exits_with_2(tmp_path):
    empty = write(tmp_path / "empty.jsonl")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"id": "\xff"}')
    (tmp_path / "folder").mkdir()
    for arguments, cause in [
        ([], "give --set FILE"),
        (["--set", str(tmp_path / "no.jsonl")], "No such file"),
        (["--set", str(empty)], "no rows"),
        (["--set", str(latin)], "not UTF-8"),
        (["--set", str(tmp_path / "folder")], "no *.jsonl in this folder"),
    ]:
        result = run.invoke(app, ["bench", "phrases", *arguments])
        assert result.exit_code == 2
        assert cause in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


# The command.


def test_the_command_prints_all_figures_on_the_last_line(tmp_path):
    text = "Take the small red card with you, and keep it in the left pocket. We will call you back."
    row = {"id": "p2", "lang": "en", "kind": "plain", "text": text, "must": [65], "may": [33]}
    file = write(tmp_path / "set.jsonl", PHRASE, row, SPOKEN)
    arguments = ["--set", str(file), "--no-peers", "--cuts", "10", "--chars", "2000", "--json"]
    result = run.invoke(app, ["bench", "phrases", *arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.strip().splitlines()[-1])
    wanted = {"n", "wrong_rate", "missed_rate", "missed_long_rate", "first_chars_char", "first_chars_token"}
    for table in (found["all"], found["by_lang"]["en"], found["by_kind"]["plain"]):
        assert wanted <= set(table)
    assert (found["all"]["n"], found["spoken"]["en"], found["tokens_ways"]) == (2, 1, 10)
    assert found["cuts_equal"] is found["tokens_equal"] is True
    assert found["cost_us_per_char"] > 0
    assert found["linear"] > 0
    assert 0 < found["peak_memory_kb"] < 1000
    assert found["stall"]["stalls"] > 0
    assert {"underruns", "releases", "inside_number"} <= set(found["stall"])
    assert {row["id"] for row in found["worst"]} == {"p1", "p2"}
    assert found["peers"] == {}
    assert "bench" in result.stderr
    assert "worst" in result.stderr


# Peers.


def peer(value):
    return EntryPoint("it", value, "voxagent.splitters")


def test_a_peer_that_is_missing_or_fails_costs_nothing_else():
    gold = phrase_set.GoldSet((phrase_row(),), ())
    points = [
        peer("not_there_at_all:create"),
        peer("json:loads"),
        peer("voxagent.benchmarks.splitters:VoxagentSplitter"),
    ]
    found = [
        phrases.measure(gold, [point], phrases.Extent(1, 1000), lambda text: None)["peers"]["it"] for point in points
    ]
    assert found[0] == {"absent": "not_there_at_all is not installed"}
    assert "JSONDecodeError" in found[1]["failed"]
    assert found[2] == phrases.tables(phrases.score(gold.phrases, VoxagentSplitter))


def test_a_trail_follows_pieces_whatever_becomes_of_whitespace():
    trail = Trail()
    trail.feed("One  two.\n\n Three")
    assert (trail.end_of("One two."), trail.end_of("Three ")) == (9, 17)
    trail.feed(" [dropped] four")
    assert trail.end_of("four?") == len("One  two.\n\n Three [dropped] four")


SENTENCES = "We moved the table to noon. Please wait at the door for Dr. Lamb. Thank you all"


def test_pipecats_aggregator_is_fed_as_its_services_do():
    from voxagent_pipecat.splitter import create

    found = fed(create("en"), SENTENCES, by_character(SENTENCES))
    assert found == phrases.Fed(frozenset({27, 65}), 29)
    assert fed(create("en"), SENTENCES, [SENTENCES]).cuts == found.cuts


def test_stream2sentence_is_fed_without_a_thread():
    pytest.importorskip("stream2sentence")
    from voxagent.benchmarks.stream2sentence_peer import create

    found = fed(create("en"), SENTENCES, by_character(SENTENCES))
    assert found.cuts == {27, 65}
    assert fed(create("en"), SENTENCES, by_token(SENTENCES, "x")).cuts == found.cuts
