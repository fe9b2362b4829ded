"""Punkt models: nltk's algorithm with the parameters that the ``punkt`` package ships.

The parameters come from plain Python modules, so nothing is downloaded, unpickled or
searched for. A model answers one question about one full stop, and the question has at
most ``2 * MAX_WORD_CHARACTERS`` characters and a few more: nltk's regular expressions
run under a wall-clock limit that a text of any size could reach, and this can't.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from secateur.model.splitter_abbreviations import ABBREVIATIONS, NO_ABBREVIATIONS, Abbreviations

MAX_WORD_CHARACTERS = 64
"""Longer words are not abbreviations and never reach Punkt."""

PUNKT_MODELS: dict[str, str] = {
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "it": "italian",
    "ml": "malayalam",
    "nb": "norwegian",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ru": "russian",
    "sl": "slovene",
    "sv": "swedish",
    "tr": "turkish",
}
"""ISO 639-1 code to the name of the model in the ``punkt`` package."""

_SEEN_LOWER_CASE = (1 << 4) | (1 << 5) | (1 << 6)
"""Punkt's flags for "this word occurred in lower case" (first, inside, unknown position)."""

_CACHED_ANSWERS = 16_384


class _OrthographicContext(dict[str, int]):
    """Flags by word; asking for an unknown word answers 0 and, unlike nltk's table, adds nothing.

    That keeps a shared model the same for ever, whichever thread asks it whatever.
    """

    def __missing__(self, word: str) -> int:
        return 0


class PunktModel:
    """One language's Punkt, safe to share between threads. Built by ``punkt_model``."""

    def __init__(self, name: str, abbreviations: Abbreviations) -> None:
        """Load the model ``name`` and add our abbreviations. ImportError without the extra."""
        import punkt
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

        data = punkt.load_model(name)
        parameters = PunktParameters()
        parameters.abbrev_types = (
            set(data.abbrev_types) - abbreviations.dropped
            | abbreviations.weak
            | abbreviations.joining
        )
        parameters.collocations = set(data.collocations)
        parameters.sent_starters = set(data.sent_starters) | abbreviations.starters
        # Words never seen in lower case get the answer of unknown words: leave them out.
        self._context = _OrthographicContext(
            (word, flags) for word, flags in data.ortho_context.items() if flags & _SEEN_LOWER_CASE
        )
        parameters.ortho_context = self._context
        self.abbreviations = abbreviations
        self._sentence_starters = frozenset(parameters.sent_starters)
        self._tokenizer: Any = PunktSentenceTokenizer(parameters)
        self._ask: Callable[[str, str], bool] = lru_cache(_CACHED_ANSWERS)(self._ask_punkt)

    def ends_sentence(self, before: str, after: str) -> bool:
        """Does the full stop after the word ``before`` end a sentence, when ``after`` is next?

        Both words are bare: no white space, no full stop at their end; ``before`` is not
        empty. Raises whatever nltk raises (TimeoutError when its own limit hits).
        """
        if len(before) > MAX_WORD_CHARACTERS:
            return True
        return self._ask(before, after[:MAX_WORD_CHARACTERS])

    def knows_word(self, word: str) -> bool:
        """Is this an ordinary word: one that the training texts had in lower case?"""
        return word.lower() in self._context

    def starts_sentences(self, word: str) -> bool:
        """Is this a word that often starts sentences?"""
        return word.lower() in self._sentence_starters

    def _ask_punkt(self, before: str, after: str) -> bool:
        return bool(self._tokenizer.text_contains_sentbreak(f"{before}. {after}"))


_models: dict[str, PunktModel] = {}
_models_lock = threading.Lock()


def punkt_model(language: str) -> PunktModel:
    """The shared model of an ISO 639-1 code, built on first use. KeyError: no such model."""
    model = _models.get(language)
    if model is None:
        name = PUNKT_MODELS[language]
        with _models_lock:
            model = _models.get(language)
            if model is None:
                key = "no" if language == "nb" else language
                model = PunktModel(name, ABBREVIATIONS.get(key, NO_ABBREVIATIONS))
                _models[language] = model
    return model
