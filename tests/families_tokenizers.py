"""Small tokenizers of each kind that the families use, with their special tokens and templates."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

WORDS = (
    "the a red blue valve pump is was opens closes what who when code hall today quiet cafe "
    "caf\u00e9 open approved limits lunch late manual of in and"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.?!,'-\u00e9\u0301"
CJK = "ポンプは赤い。弁青"


def unigram_pieces() -> list[tuple[str, float]]:
    """SentencePiece-like pieces; emoji are unknown."""
    pieces = [("\u2581", -3.0)]
    pieces += [(f"\u2581{word}", -5.0) for word in WORDS]
    pieces += [(f"\u2581{word.title()}", -5.5) for word in WORDS]
    pieces += [(letter, -8.0) for letter in dict.fromkeys(LETTERS + CJK)]
    return pieces


def deberta_v3() -> Tokenizer:
    """SentencePiece Unigram with DeBERTa-v3's special tokens."""
    special = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    vocabulary = [*special, *unigram_pieces(), ("[MASK]", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return _with_pair(tokenizer, "[CLS]", "[SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[MASK]")


def xlm_roberta() -> Tokenizer:
    """SentencePiece Unigram with XLM-R's special tokens; a pair has two separators."""
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    tokenizer = Tokenizer(models.Unigram([*special, *unigram_pieces(), ("<mask>", 0.0)], unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace()
    return _with_pair(tokenizer, "<s>", "</s>", "<s> $A </s> </s> $B </s>", "<mask>")


def modernbert() -> Tokenizer:
    """Byte-level BPE: a character may be several tokens, a space belongs to the word after it."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = _byte_level(special)
    tokenizer.normalizer = normalizers.NFC()
    return _with_pair(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B [SEP]", *special)


def roberta() -> Tokenizer:
    """RoBERTa's byte-level BPE, which trims spaces from offsets; a pair has two separators."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = _byte_level(special)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def bert() -> Tokenizer:
    """Lower-casing WordPiece."""
    letters = dict.fromkeys(LETTERS.lower() + CJK)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _with_pair(tokenizer, "[CLS]", "[SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", *special)


def _byte_level(special: list[str]) -> Tokenizer:
    """All bytes, and merges that build each word with its space from left to right."""
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        if word.isascii():
            for length in range(1, len(word) + 1):
                whole = "\u0120" + word
                merges[whole[:length], whole[length]] = None
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_pair(tokenizer: Tokenizer, first: str, last: str, pair: str, *special: str) -> Tokenizer:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=pair, special_tokens=ids
    )
    names = dict.fromkeys((first, last, *special))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in names])
    return tokenizer
