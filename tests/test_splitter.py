"""The sentence splitter: exact spans for any text, sane sentences, bounded work."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secateur.model import punkt_data, splitter
from secateur.model.splitter import SentenceSplitter, Split

SPLITTER = SentenceSplitter()


def sentences(text: str, language: str = "") -> list[str]:
    split = SPLITTER.split(text, language)
    check(text, split)
    assert not split.coarse
    return [text[start:end] for start, end in split.spans]


def check(text: str, split: Split) -> None:
    """The contract of spans, for any text."""
    position = 0
    for start, end in split.spans:
        assert position <= start < end
        assert not text[position:start].strip()
        assert not text[start].isspace()
        assert not text[end - 1].isspace()
        position = end
    assert not text[position:].strip()


# "¦" marks where sentences part; the white space around it stays in the text.
F1 = (
    "Limits follow Sect. 4 of the manual. ¦Dr. Osei et al. approved rev. 2 on 3 Jan. 2021. ¦"
    "Lunch was late."
)
GOLDEN = {
    "abbreviations": [
        F1,
        "See No. 5 for it. ¦The answer was no. ¦I left.",
        "Use a hammer, e.g. a claw hammer, i.e. this one. ¦It is approx. 3 kg.",
        "J. R. Smith came. ¦It holds vitamin C. ¦The next one doesn't.",
        "The U.S. Army came. ¦He left the U.S. ¦The war ended.",
        "At 5 p.m. the bus came. ¦It was 5 p.m. ¦The bus came.",
        "Acme Inc. was sold.[1] ¦Next came Bob.[2][3] ¦He stayed.",
        "He saw Dr.\nOsei. ¦It was directed by Asit Sen. ¦The film stars Raj.",
        "It cost $3.50. ¦Then v1.2.3 came. ¦Was it 100? ¦No.  ¦Yes.",
        "The tr. unknwn. text was in use. ¦he grumbled. ¦it is true.",
    ],
    "quotes": [
        '"Stop." ¦He left. ¦(See it.) ¦Then "Go!" he said. ¦What?! ¦“No.” ¦« Oui. » ¦Il part.',
        'He called it "fun. " ¦Then "Sad" came. ¦Red (see Fig. 2. It is big) works. ¦Ok.',
        "Wait... what? ¦Well... ¦Then he (born 1980 (?) in Rome) went on [...] on. ¦Ok…  ¦So.",
    ],
    "scripts": [
        "ポンプは赤い。¦弁は青い。¦彼は「蓋は白い！」と書いた。",
        "弁はv1.2です。¦Use it. ¦「行こう。」¦次｡¦３．５は数？¦はい!¦次へ",
        "他说：“你好。”¦然后走了。¦“你好！”他说。¦好的。¦“走吧！”¦他走了。",
        "यह लाल है। ¦वह नीला है॥ ¦डॉ. सिंह आए।",
        "هل هو أحمر؟ ¦نعم. ¦د. أحمد هنا. ¦یہ سرخ ہے۔ ¦ہاں",
        "Հայերեն։ ¦Այո։ ¦그는 갔다. ¦나는 왔다. ¦አዎ። ¦Τι κάνεις; ¦Καλά. ¦См. рис. 2. ¦Да.",
        "👍 ok. ¦Café é. ¦終。",
    ],
    "layout": [
        "- red pump\n¦- blue valve\n¦• green lid. ¦It is new.\n\n¦1. Open it\n¦2) Shut\n   it",
        "# Title? Yes\n¦The pump is\nred. ¦The valve\nis blue.\n\n¦Name\n====\n¦No end\n\n¦Next",
        "Overview\n¦The pump is red. ¦The valve is in\nBuilding Four of the old\nfactory.",
        "| a. B | c |\n¦|---|---|\n¦| d. E | f! G |\n\n¦Name\tAge. X\n¦Bob\t3. Y",
        "Run it:\n¦```py\nx = 1. Foo\n\n- y! Bar\n```\n¦Done.\n¦~~~\nopen. End",
        "See https://a.b/c?d=1.2&e=f!g and a.b/c?d=1. ¦Next me@x.org. ¦Read README.md. ¦Ok.",
        "Items: ¦• red one ¦• blue one",
        "2021-01-03 start\n¦2021-01-04 it ended\x0c¦page two\u2029¦three",
    ],
}


@pytest.mark.parametrize("marked", [line for lines in GOLDEN.values() for line in lines])
def test_golden_sentences(marked: str) -> None:
    pieces = marked.split("¦")
    assert sentences("".join(pieces)) == [piece.strip() for piece in pieces]


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("de", "Er kam am 3. Januar. ¦Siehe Nr. 4, z. B. Abb. 2 an. ¦„Halt.“ ¦Rev. Ott ging."),
        ("fr", "M. Dupont est là. ¦Voir p. 4, c.-à-d. ici. ¦Il part."),
        ("es", "El Sr. Gómez vino. ¦Vea la pág. 3. ¦¿Qué? ¦¡No! ¦Sí."),
        ("tr", "II. Dünya Savaşı bitti. ¦Tamam."),
        ("ja", "弁は青い。¦See Fig. 2. ¦次。"),
        ("nb", "Det er nr. 4. ¦Han gikk."),
    ],
)
def test_a_language_code_chooses_the_rules(language: str, marked: str) -> None:
    pieces = marked.split("¦")
    assert sentences("".join(pieces), language) == [piece.strip() for piece in pieces]


def test_every_listed_language_splits_plain_sentences() -> None:
    for language in SPLITTER.languages:
        assert len(sentences("Valve 3000 works well. Another one? Also fine!", language)) == 3


@pytest.mark.parametrize("language", ["xx", "EN", "english", " "])
def test_an_unknown_language_is_refused_with_the_known_ones(language: str) -> None:
    with pytest.raises(ValueError, match="cs, da, de, el, en"):
        SPLITTER.split("Red valve.", language)


def test_thai_parts_at_spaces_once_a_sentence_is_long_enough() -> None:
    clause = "ระบบนี้ใช้ปั๊มน้ำสีแดงและวาล์วสีน้ำเงินสำหรับอาคารหลังใหม่ของบริษัทในกรุงเทพ"
    assert sentences(f"{clause} {clause} กม.") == [clause, clause, "กม."]


@pytest.mark.parametrize("text", ["", " ", "  \n", "\n" * 1000, "\x1c\x1f\x85\u2028\u3000"])
def test_a_blank_text_has_no_sentences(text: str) -> None:
    assert SPLITTER.split(text) == Split((), False)


@pytest.mark.parametrize("text", ["...", "🙂", "Red valve.", "\u200b", ".", "「", "```", "-", "1."])
def test_odd_short_texts_are_one_sentence(text: str) -> None:
    assert sentences(f"  {text}\n") == [text]


PIECES = st.sampled_from(
    [
        *"aBé1 \n\t.!?…。！「」()\"'“”:;,-*|#=`~\\/@ก",
        *"あ你यα\x1c\x1e\x85\u200b\u2028\u2029\u3000\ud800",
        *"Dr.|No. 5|\r\n|\n\n|```\n|- |1. |http://a.b/c?|U.S.|  ".split("|"),
        "| a |",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(["", "en", "de", "ja", "th"]))
@example("a\n```\n", "")
@example('x. " y', "")
def test_spans_obey_the_contract(text: str, language: str) -> None:
    check(text, SPLITTER.split(text, language))


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_spans_obey_the_contract_on_any_text(text: str) -> None:
    check(text, SPLITTER.split(text))


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join), st.integers(1, 40))
def test_coarse_units_obey_the_contract(text: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitter, "MAX_SENTENCE_CHARACTERS", limit)
        patch.setattr(splitter, "MAX_BLOCK_CHARACTERS", limit)
        patch.setattr(splitter, "COARSE_UNIT_CHARACTERS", limit)
        split = SPLITTER.split(text)
    check(text, split)
    assert all(end - start <= limit for start, end in split.spans)


HOSTILE = {
    "abbreviations": ("n. ", 200_000),
    "one word": ("A", 200_000),
    "closers": ("). ", 50_000),
    "newlines": ("\n", 200_000),
    "bullets": ("- ", 100_000),
    "fences": ("``` ", 50_000),
    "fence lines": ("```\n", 50_000),
    "open brackets": ("(", 100_000),
    "open corner brackets": ("「", 100_000),
    "nested quotes": ("「“.", 50_000),
    "quotes": ('. " ', 50_000),
    "stops": (". ", 100_000),
    "stops in a row": (".", 200_000),
    "white space": ("a" + " " * 500, 400),
    "list items": ("- a\n", 50_000),
    "tabs": ("a\t", 100_000),
    "full stops": ("あ。", 100_000),
    "Thai": ("ก ", 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_give_bounded_units(name: str) -> None:
    piece, count = HOSTILE[name]
    text = piece * count
    split = SPLITTER.split(text)
    check(text, split)
    assert len(split.spans) <= max(2_000, len(text) // 16) + len(text) / 500 + 1
    assert all(end - start <= splitter.MAX_SENTENCE_CHARACTERS for start, end in split.spans)
    if split.coarse:
        assert split.spans[-1][1] - split.spans[-1][0] <= splitter.COARSE_UNIT_CHARACTERS
    assert split.coarse == (name not in ("newlines", "Thai"))


class _Questions(list[str]):
    """Every text that Punkt is asked about, on models without a warm cache."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from nltk.tokenize.punkt import PunktSentenceTokenizer

        patch.setattr(punkt_data, "_models", {})
        answer = PunktSentenceTokenizer.text_contains_sentbreak

        def ask(tokenizer: object, text: str) -> bool:
            self.append(text)
            return bool(answer(tokenizer, text))

        patch.setattr(PunktSentenceTokenizer, "text_contains_sentbreak", ask)


def test_punkt_sees_only_short_texts_and_as_many_as_the_length_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions = _Questions(monkeypatch)
    counts = []
    for count in (5_000, 10_000):
        questions.clear()
        text = "".join(f"w{index}. W{'x' * 90} y{'z' * 50}. " for index in range(count // 50))
        text += "".join(f"v{index}. V " for index in range(count))
        split = SPLITTER.split(text)
        check(text, split)
        assert split.coarse
        counts.append((len(questions), len(text)))
        assert max(map(len, questions)) <= 2 * punkt_data.MAX_WORD_CHARACTERS + 2
        assert len(questions) <= len(text) // 16
    assert counts[1][0] / counts[0][0] <= 1.02 * counts[1][1] / counts[0][1]


def test_a_failing_punkt_gives_coarse_units(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nltk raises TimeoutError when its regular expressions run over their limit."""
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    def fail(tokenizer: object, text: str) -> bool:
        raise TimeoutError

    monkeypatch.setattr(punkt_data, "_models", {})
    monkeypatch.setattr(PunktSentenceTokenizer, "text_contains_sentbreak", fail)
    text = "Is it red? It is a blue valve. Next one. " * 100
    split = SPLITTER.split(text)
    check(text, split)
    assert split.coarse
    assert text[slice(*split.spans[0])] == "Is it red?"
    assert max(end - start for start, end in split.spans) <= splitter.COARSE_UNIT_CHARACTERS
    assert "cutting coarsely" in caplog.text


def test_a_long_code_block_stays_whole_and_a_huge_one_is_cut_at_line_ends() -> None:
    block = "```\n" + "x = 1. Next\n" * 1_000 + "```"
    assert sentences(f"Run:\n{block}\nDone.") == ["Run:", block, "Done."]
    huge = "```\n" + "x = 1. Next\n" * 2_000 + "```"
    split = SPLITTER.split(huge)
    check(huge, split)
    assert split.coarse
    assert all(huge[end : end + 1] in ("\n", "") for _, end in split.spans)


def test_a_long_plain_text_is_not_coarse() -> None:
    text = "The pump in the hall is red. Dr. Osei approved it in Sect. 4. " * 10_000
    assert len(sentences(text)) == 20_000


def test_threads_that_load_models_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Dr. Weiß kam am 3. Januar. Il est là. El Sr. Gómez. Ok. " * 20
    languages = ["de", "fr", "es", "de", "en", "fr", "", "es"] * 4
    expected = [SPLITTER.split(text, language) for language in languages]
    monkeypatch.setattr(punkt_data, "_models", {})
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(SPLITTER.split, [text] * len(languages), languages)) == expected


def test_a_shared_model_does_not_grow_with_the_words_it_is_asked_about() -> None:
    model = punkt_data.punkt_model("en")
    size = len(model._context)
    SPLITTER.split(" ".join(f"Valve{index}. Pump{index}" for index in range(1_000)))
    assert len(model._context) == size


OFFLINE = """
import os, sys

def forbid(event, args):
    network = event.startswith(("socket.connect", "socket.getaddrinfo", "urllib."))
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if network or event == "pickle.find_class" or (writes and str(args[0]) != os.devnull):
        raise RuntimeError(f"{event} {args}")

sys.addaudithook(forbid)
from secateur.model.splitter import SentenceSplitter

splitter = SentenceSplitter()
for language in ("", *splitter.languages):
    print(len(splitter.split("Dr. Who saw Valve 3000. Next came pumps.", language).spans))
"""


def test_works_with_no_network_an_empty_home_and_nothing_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"2"}
