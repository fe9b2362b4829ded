"""Does this full stop end a sentence? Lists first, then case, then Punkt.

The judge of one text: it picks the language's model by the script of the word before the
stop and counts its questions, so that a text can't buy more work than its length allows.
"""

from __future__ import annotations

import re

from secateur.model.punkt_data import MAX_WORD_CHARACTERS, PUNKT_MODELS, PunktModel, punkt_model
from secateur.model.splitter_abbreviations import ABBREVIATIONS, NO_ABBREVIATIONS, Abbreviations
from secateur.model.splitter_language import script_language

RULES_ONLY = tuple(
    "am ar bn fa gu he hi hu hy id ja ka km kn ko lo mr my pa ro ta te th uk ur vi zh".split()
)
"""ISO 639-1 codes that have rules here and no Punkt model."""

_OTHER_SCRIPTS = frozenset((*RULES_ONLY, "el", "ml", "ru")) - {"hu", "id", "ro", "vi"}
_NUMERAL = re.compile(r"\d|[IVXLC]{2,}$|[B-HJ-Z]$")
_ROMAN = re.compile(r"[IVX]+$")
_ACRONYM = re.compile(r"[^\W\d_](?:\.[^\W\d_])+$")
_NEVER_NAMES = frozenset("the this that these those they there although however".split())
_SHORTEST_THAI_SENTENCE = 8
_LONGEST_ABBREVIATION = 6
_STOPS_PER_QUESTION = 2


class LimitError(Exception):
    """The text has more candidates or sentences than prose of its length."""


class Judge:
    """The ``FullStopJudge`` of one text: picks the model by script, counts the questions.

    Raises LimitError once it would have to ask Punkt more than ``budget`` times, or to judge
    more than twice as many stops.
    """

    def __init__(self, language: str, budget: int) -> None:
        self._language = language
        self._latin = "en" if language in _OTHER_SCRIPTS else language
        self._budget = budget
        self._stops = _STOPS_PER_QUESTION * budget

    def __call__(self, before: str, after: str, closed: bool, starts_lower: bool) -> bool:
        self._stops -= 1
        if self._stops < 0:
            raise LimitError
        if len(before) > MAX_WORD_CHARACTERS:
            return True
        if len(before) == 1 and before.isalpha() and after.endswith("."):
            return False  # "J. R. Smith", "z. B."
        after = after.rstrip(".")
        language = self._language_of(before)
        key = "no" if language == "nb" else language
        abbreviations = ABBREVIATIONS.get(key, NO_ABBREVIATIONS)
        if _is_listed(before, after, abbreviations):
            return False
        title = before.lower() in abbreviations.titles and not before[0].islower()
        if title:
            return after.lower() in _NEVER_NAMES  # "Sen. Smith", but "by Asit Sen. The film"
        if language not in PUNKT_MODELS:
            return _ends_without_model(before, after, abbreviations)
        self._budget -= 1
        if self._budget < 0:
            raise LimitError
        return _ends_by_punkt(punkt_model(language), before, after, closed, starts_lower)

    def _language_of(self, word: str) -> str:
        """Whose rules the word's script needs."""
        letter = next((character for character in word if character.isalpha()), "")
        script = script_language(letter) if letter else ""
        if script == "-":
            return self._language if self._language in RULES_ONLY else _script_default(letter)
        if script == "" or (len(word) == 1 and script != self._language):
            return self._latin  # A lone Greek letter is a symbol.
        return script


def _script_default(letter: str) -> str:
    if "\u0600" <= letter < "\u0700":
        return "ar"
    return "hi" if "\u0900" <= letter < "\u0980" else ""


def _is_listed(before: str, after: str, abbreviations: Abbreviations) -> bool:
    """Is the full stop settled as no end by our own lists?"""
    word = before.lower()
    if "-" in word and word not in abbreviations.joining:
        word = word.rsplit("-", 1)[-1]
    if word in abbreviations.joining:
        return True
    if word in abbreviations.numeric and _NUMERAL.match(after):
        return True
    return abbreviations.ordinals and word.isdecimal() and len(word) <= 2 and after[:1].islower()


def _ends_without_model(before: str, after: str, abbreviations: Abbreviations) -> bool:
    """For languages that Punkt doesn't know: a stop ends unless it follows an abbreviation."""
    if before.lower() in abbreviations.weak or _ACRONYM.match(before):
        return False
    if after[:1].islower():
        return False
    if "\u0e00" <= before[0] < "\u0f00":  # Thai and Lao: stops mark abbreviations.
        return len(before) >= _SHORTEST_THAI_SENTENCE and "." not in before
    return not (len(before) == 1 and before.isalpha() and before < "\u1100")


def _ends_by_punkt(
    model: PunktModel, before: str, after: str, closed: bool, starts_lower: bool
) -> bool:
    """Ask Punkt, but trust case more than it does.

    Before a lower-case word a sentence ends only where the writer doesn't use capitals, or
    after an ordinary word: a short unknown one is an abbreviation that Punkt hasn't seen.
    """
    if after[:1].islower() and not starts_lower:
        ordinary = before.isalpha() and (
            len(before) > _LONGEST_ABBREVIATION or model.knows_word(before)
        )
        if closed or not ordinary:
            return False
    ordinal = (before.isdecimal() and len(before) <= 2) or _ROMAN.match(before)
    if model.abbreviations.ordinals and ordinal:
        return model.starts_sentences(after)
    if len(before) == 1 and model.starts_sentences(after):
        return True  # "Vitamin C. The next"
    if _ACRONYM.match(before):
        return model.starts_sentences(after)  # "U.S. The", but "U.S. Senator"
    return model.ends_sentence(before, after)
