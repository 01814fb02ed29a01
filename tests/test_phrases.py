"""Where a stream of text is cut, and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.phrases import Phrase, PhraseSplitter, speech_seconds


def feed(text, language="en", size=1, **options):
    """Feeds a text in tokens of `size` characters and ends it."""
    splitter = PhraseSplitter(language, **options)
    out = [phrase for at in range(0, len(text), size) for phrase in splitter.push(text[at : at + size])]
    return out + splitter.end()


def texts(phrases):
    return [phrase.text.strip() for phrase in phrases]


HELD = [
    "We spoke with >Dr. Lamb< about it.",
    "The total comes to >12,480.75< in all.",
    "Version >4.2.1< fixes that for good.",
    "Please be there at >8.30 or 8:45< sharp.",
    "Write to >j.doe@mail.example.com< today.",
    "It is at >https://example.com/a.b?c=d.e< right now.",
    "The file >report.v2.final.pdf< is ready now.",
    "The band >Wham! played< there last night.",
    'The sign says >"Stop. Do not enter!"< over there.',
    "It weighs >(incl. the box, i.e. all of it)< a lot more.",
    "Use >**the big red button. The other one!**< for that.",
    "The >U.S. Senate and R.J. Hale< agreed on that.",
    "We live in >Portland, Oregon< near the river.",
    "Keep it in a >cool, dry place< at home.",
    "One more >moment, please<.",
    "It takes >10–15 minutes from the Paris–Lyon line<.",
    ">No. 5 and fig. 7 and Jan. 3< are fine with us.",
    "Run `>git commit. -m now!<` and wait for it.",
]


@pytest.mark.parametrize("marked", HELD)
def test_no_cut_inside_what_belongs_together(marked):
    group = marked[marked.index(">") + 1 : marked.rindex("<")]
    found = texts(feed(marked.replace(">", "").replace("<", "")))
    assert sum(group in text for text in found) == 1


@pytest.mark.parametrize(
    ("language", "text", "cuts"),
    [
        ("en", "That is fine with me. What is next for us?", 1),
        ("en", "I will be there at 6 p.m. See you at the door!", 1),
        ("en", "You have options:\n1. Call the front desk\n2. Write to us today\n3. Come by in person", 3),
        ("en", '"Is it open?" is what they ask. The answer is yes.', 1),
        ("en", 'It said "Card declined." Did you see a code?', 1),
        ("en", "**Very good news!** The parcel has arrived.", 1),
        ("en", "I am on it... That should be all you need.", 1),
        ("en", "All done here! 🎉 Your table is booked now.", 1),
        ("en", "Vitamin C is in vitamin D. Are you taking both?", 1),
        ("en", "Opened in 1952.[3] Tickets are free for kids.", 1),
        ("de", "Am 3. Mai ist der Termin. Passt Ihnen das gut?", 1),
        ("fr", "Elle a dit : « Je viens demain. » Voulez-vous rester ?", 2),
        ("es", "Ya está todo listo. ¿Le ayudo con otra cosa?", 1),
        ("ru", "Чиним часы, лампы и т. д. Что у вас сломалось?", 2),
        ("zh", "您好这里是客服中心。请问有什么可以帮您？", 1),
        ("ja", "「また明日来ます」と言っていました。伝言はありますか？", 1),
        ("hi", "सुबह एक गोली लीजिए। रात को फिर एक लीजिए।", 1),
        ("ar", "مرحبا بك في خدمة العملاء. كيف يمكنني مساعدتك؟", 1),
        ("th", "ขออภัยด้วยนะคะ รุ่นนี้หมดแล้วค่ะ", 1),
        ("ko", "예약을 옮겨 드렸습니다. 더 필요하신 게 있나요?", 1),
    ],
)
def test_sentences_are_cut_in_many_languages(language, text, cuts):
    assert len(feed(text, language)) == cuts + 1


def test_the_mark_itself_releases_where_nothing_can_follow_it():
    splitter = PhraseSplitter("zh")
    assert texts(splitter.push("我马上帮您查一下。")) == ["我马上帮您查一下。"]
    splitter = PhraseSplitter("en")
    assert splitter.push("I can do that for you.") == []
    assert texts(splitter.push(" ")) == ["I can do that for you."]


def test_the_first_phrase_is_released_at_a_clause_and_later_ones_at_sentences():
    text = "If you like it, I can book it, and they will hold it. Fine by me, I think, so we go on."
    assert texts(feed(text)) == [
        "If you like it,",
        "I can book it, and they will hold it.",
        "Fine by me, I think, so we go on.",
    ]


def test_long_sentences_are_cut_at_clauses_once_they_are_comfortable():
    text = "Well then. The parcel left our warehouse on Monday at noon, and the driver hopes to be there by six."
    assert texts(feed(text))[1:] == [
        "The parcel left our warehouse on Monday at noon,",
        "and the driver hopes to be there by six.",
    ]


def test_a_short_sentence_joins_the_next_one():
    assert texts(feed("Yes! You have two open bills.")) == ["Yes! You have two open bills."]


def test_a_silent_block_is_released_by_itself_and_lesser_silence_joins_what_follows():
    found = feed("<think>Be brief. No lists.</think>\n\nWe are open until eight. 👍 Anything else today?")
    assert [phrase.spoken for phrase in found] == ["", "We are open until eight.", "Anything else today?"]
    assert [phrase.reason for phrase in found] == ["silent", "sentence", "end"]


def test_code_is_silent_and_never_cut():
    found = feed("Try this line:\n```python\nx = 1. # Yes! No?\n\ny = 2\n```\nThen start it again.")
    assert [phrase.spoken for phrase in found] == ["Try this line:", "", "Then start it again."]


def test_phrases_know_where_they_stand():
    found = feed("That is one. This is two now.")
    assert [(p.start, p.end) for p in found] == [(0, 12), (12, 29)]
    assert [p.reason for p in found] == ["sentence", "end"]
    assert [p.final for p in found] == [False, True]


def test_endless_text_is_cut_at_words_within_the_cap():
    found = feed("the quick brown fox and the lazy dog " * 270, size=7)
    assert len(found) > 50
    assert all(speech_seconds(p.text) <= 10.2 for p in found)
    assert all(p.text.split()[0] in ("the", "quick", "brown", "fox", "and", "lazy", "dog") for p in found)


def test_one_endless_word_is_cut_between_graphemes():
    found = feed("e\u0301" * 2000, size=3)
    assert len(found) > 10
    assert not any(p.text.startswith("\u0301") for p in found)


def test_a_long_address_stays_whole():
    address = "https://example.com/" + "segment/" * 60
    found = feed(f"The page is at {address} as of today.")
    assert any(address in p.text for p in found)


def test_a_long_thought_is_released_in_silent_pieces():
    splitter = PhraseSplitter("en")
    out, most = [], 0
    for token in ["<think>", *["Let me see. "] * 2000, "</think>", "We are ", "open now."]:
        out += splitter.push(token)
        most = max(most, len(splitter.pending))
    out += splitter.end()
    assert "".join(p.spoken for p in out) == "We are open now."
    assert most < 2100


def test_halves_of_a_surrogate_pair_meet_again():
    splitter = PhraseSplitter("en")
    out = splitter.push("I like it \ud83d") + splitter.push("\ude00 a lot.") + splitter.end()
    assert "".join(p.text for p in out) == "I like it 😀 a lot."


def test_a_lone_surrogate_becomes_a_silent_replacement_character():
    found = feed("Good \ud83d day \ude00 sir\ud83d")
    assert "".join(p.text for p in found) == "Good \ufffd day \ufffd sir\ufffd"
    assert " ".join(p.spoken for p in found) == "Good day sir"


@pytest.mark.parametrize("text", ["", " ", "\n\n\n", "...", "🎉👍", "\x00\x07", "**__``", "((((", '"""""', "<<<<", "—"])
def test_text_without_words_is_silent_and_complete(text):
    found = feed(text)
    assert "".join(p.text for p in found) == text
    assert all(p.spoken == "" for p in found)
    assert all(p.final == (p is found[-1]) for p in found)


class TestTimers:
    def test_a_stalled_text_is_released_up_to_the_last_word(self):
        splitter = PhraseSplitter("en")
        for step, token in enumerate(["The next", " free appoint", "ment is ", "on Tues"]):
            splitter.push(token, step * 0.1)
        assert splitter.next_deadline_s == pytest.approx(0.6, abs=0.05)
        assert splitter.poll(0.5, 0.0) == []
        assert texts(splitter.poll(0.61, 0.1)) == ["The next free appointment"]
        assert splitter.pending == " is on Tues"
        assert splitter.next_deadline_s is None

    def test_a_long_runway_postpones_the_stall(self):
        splitter = PhraseSplitter("en")
        splitter.push("The next free appointment is on Tuesday", 0.0)
        assert splitter.poll(1.0, 2.0) == []
        assert splitter.next_deadline_s == pytest.approx(2.5)
        assert texts(splitter.poll(2.6, 0.4)) != []

    @pytest.mark.parametrize(
        "marked",
        [
            "The number is >1 202 555",
            'It says >"please wait',
            "The card >**ending in",
            "Ask >Dr. ",
            "Run >`npm i",
            "It costs >$5 ",
        ],
    )
    def test_a_stall_never_cuts_inside_a_held_group(self, marked):
        splitter = PhraseSplitter("en")
        splitter.push(marked.replace(">", ""), 0.0)
        splitter.poll(1.0, 0.0)
        assert marked[marked.index(">") + 1 :] in splitter.pending

    def test_a_mark_at_the_end_counts_when_the_text_stalls(self):
        splitter = PhraseSplitter("en")
        splitter.push("That is all there is.", 0.0)
        assert texts(splitter.poll(0.7, 0.0)) == ["That is all there is."]

    def test_a_low_runway_releases_a_short_clause(self):
        splitter = PhraseSplitter("en")
        splitter.push("That works for me. On Tuesday at noon, we can ", 0.0)
        assert splitter.next_deadline_s == 0.0
        assert splitter.poll(0.05, 3.0) == []
        assert splitter.next_deadline_s == pytest.approx(0.3)
        assert [p.reason for p in splitter.poll(0.1, 0.9)] == ["runway"]
        assert splitter.pending == " we can "

    def test_nothing_pending_means_no_timer(self):
        splitter = PhraseSplitter("en")
        assert splitter.next_deadline_s is None
        splitter.push("Hello to all of you.", 0.0)
        splitter.flush(0.1)
        assert splitter.next_deadline_s is None
        assert splitter.poll(9.0, 0.0) == []


def test_flush_releases_held_groups_and_the_turn_goes_on():
    splitter = PhraseSplitter("en")
    splitter.push('He said "wait')
    (phrase,) = splitter.flush()
    assert (phrase.text, phrase.reason, phrase.final) == ('He said "wait', "flush", False)
    assert splitter.flush() == []
    splitter.push(' for me" then.')
    assert splitter.end()[-1].final


def test_ending_twice_gives_nothing_more():
    splitter = PhraseSplitter()
    splitter.push("Bye.")
    assert len(splitter.end()) == 1
    assert splitter.end() == []


@pytest.mark.parametrize("options", [{"first_s": 0}, {"max_phrase_s": 0.5}, {"tail_s": -1}])
def test_lengths_must_be_positive(options):
    with pytest.raises(ValueError, match="positive"):
        PhraseSplitter("en", **options)


def test_seconds_are_estimated_by_script():
    assert speech_seconds("I can definitely help you with that right now") == pytest.approx(3.1, abs=0.3)
    assert speech_seconds("我马上帮您查一下这个问题") == pytest.approx(2.5, abs=0.4)
    assert speech_seconds("1234567") > 2
    assert speech_seconds("🎉 ** \n") == 0


PIECES = st.sampled_from(
    [
        *" \n.,:;!?-–—…'\"*_`#|<>[]()“”«»「」。，！1aBcé你ですนะคะ한👍🏽\u200d\ufe0f\u0301🇩🇪/@",
        *("Dr. ", "e.g. ", " and the ", " but ", "```", "<think>", "</think>", "https://x.io/", "\n- ", "1. ", "3.5"),
        *(" I ", "That is fine. ", "No, ", "\ud83d", "\ude00", "ค่ะ ", "please "),
    ]
)
ANY_TEXT = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=80).map("".join))


@settings(max_examples=500, deadline=None)
@given(ANY_TEXT, st.sampled_from(["en", "de", "ja", "th", None]), st.data())
def test_the_same_text_gives_the_same_phrases_however_it_is_split(text, language, data):
    marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    splitter = PhraseSplitter(language)
    pieces = [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
    found = [phrase for piece in pieces for phrase in splitter.push(piece)] + splitter.end()
    assert found == feed(text, language, size=max(1, len(text)))
    assert found == feed(text, language)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert "".join(phrase.text for phrase in found) == whole
    _consistent(found)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PIECES, st.floats(0, 2), st.floats(0, 3), st.integers(0, 9)), max_size=40))
def test_no_text_is_lost_or_doubled_whatever_the_timers_do(steps):
    splitter, now, out = PhraseSplitter("en"), 0.0, []
    for piece, pause, runway, action in steps:
        out += splitter.push(piece, now)
        now += pause
        out += splitter.poll(now, runway)
        if action == 0:
            out += splitter.flush(now)
    out += splitter.end(now)
    text = "".join(piece for piece, *_ in steps)
    assert "".join(p.text for p in out) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    _consistent(out)


def _consistent(phrases: list[Phrase]):
    at = 0
    for phrase in phrases:
        assert phrase.text
        assert phrase.start == at
        assert phrase.speakable.pieces[-1].w1 == len(phrase.text)
        at = phrase.end


@pytest.mark.parametrize(
    "unit", ["a", "1", " ", "\n", ".", "*", '"', "(", "<a ", "a, ", "。", "😀", "\u0301", "Dr. ", "`", "and "]
)
def test_a_huge_token_is_handled_in_bounded_memory(unit):
    splitter = PhraseSplitter("en")
    text = unit * (100_000 // len(unit))
    found = splitter.push(text)
    assert len(splitter.pending) <= 4100
    assert "".join(p.text for p in found + splitter.end()) == text


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "That will be ready in about 15 min.| Is that OK with you?"),
        ("en", "Alex said:| 'Do not wait for me today.'| So we left the house."),
        ("en", "They will arrive at 4 p.m. EST.| Their room is ready now."),
        ("en", "The manual is at| www.example.com/help if you need it."),
        ("en", "Please write a mail to| claims@insure.example for that."),
        ("en", "The grand museum| (free for all children) closes at five."),
        ("en", "The museum (the old) closes at five."),
        ("en", "That is no trouble,| but let me know if you need it later."),
        ("en", "Balance today:| $1,204.77 in checking."),
        ("de", "Das Büro von Hrn. Weidner ist am Schillerpl. 3.| Dort gibt es auch Parkplätze."),
        ("ru", "Клиника находится на пр. Мира.| Вход со двора всегда открыт."),
        ("hi", 'डॉ. शर्मा ने कहा,| "मैं कल आऊँगा।"| क्या समय बदलना है?'),
        ("zh", "我帮您查了一下这趟航班| 因为天气原因要晚两个小时起飞".replace("| ", "|")),
        ("ko", "라면 두 개하고 김밥 한 줄 주문하셨고| 배달은 삼십 분 정도 걸릴 것 같습니다"),
        ("th", "สินค้าของคุณจัดส่งแล้วค่ะ| จะถึงวันที่ 5 มี.ค. นะคะ"),
        ("hi", "पहले आप दूध और चीनी और इलायची को एक साथ अच्छी तरह मिला लीजिए।"),
        ("en", "Once the blue lamp has stopped blinking| you can open the door of the washer again."),
        ("en", "If you would like to hear more about what you can do from home just tell me."),
        ("en", "We have to wait with the repair of the roof| until the rain has stopped for a day or two."),
        ("en", "Please wash the collar of the coat by hand| and dry it slowly in the shade of a tree."),
        ("en", "The guests had soup and salad and cheese and cake and coffee and tea."),
    ],
)
def test_clauses_end_before_what_is_read_apart_and_nowhere_else(language, marked):
    text = marked.replace("|", "")
    cuts = [len(part) for part in marked.split("|")][:-1]
    ends = [sum(cuts[: n + 1]) for n in range(len(cuts))]
    assert [p.end for p in feed(text, language)][:-1] == ends
