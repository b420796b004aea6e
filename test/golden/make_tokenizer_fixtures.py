#!/usr/bin/env python3
"""Makes the fixtures of tokenizer_test.cpp: what the `tokenizers` library says about many strings.

usage: python3 make_tokenizer_fixtures.py [TEXT_DIR [MODELS_DIR [NAME...]]]

Needs `pip install tokenizers` (made with 0.23.3). TEXT_DIR (default ../shared/text beside the checkout) holds the texts in
the public domain that the small tokenizers are trained on; MODELS_DIR (default ../shared/models) holds tokenizers in real
use, which are not part of the project: only their ids go into the fixtures. With NAMEs only those of the small tokenizers are made anew,
with the strings that are there; all else stays as it is. Writes to the folder tokenizer/ beside this file:

  strings.json     the strings, shared by all tokenizers
  <name>.json      small tokenizers, one per kind, trained here
  <name>.ids       first line: JSON about the tokenizer; then for each string its ids without the template, each as `digits`
                   base-64 digits (A-Za-z0-9+/, most significant first), and the CRC-32 of what decode makes of them;
                   "!" for a string that the library itself cannot encode
  bytes.json       byte strings that are not UTF-8 (hexadecimal) with the ids of their text read with errors="replace"
  steps.json       pre-tokenizers and normalizers by themselves: what becomes of some of the strings

The random choices are seeded, but the order of sets and the ties that the library's trainers meet are up to chance: made
anew, tokenizers come out a little different. Add new ones by NAME.
"""

import json
import pathlib
import random
import struct
import sys
import unicodedata
import zlib

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = HERE / "tokenizer"
TEXT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "text"
MODELS = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT.parent / "shared" / "models"
ONLY = sys.argv[3:]
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# ---------------------------------------------------------------------------------------------------- strings

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "It isn't what it's worth; it's what you'll pay for it.",
    "Portez ce vieux whisky au juge blond qui fume : où êtes-vous, l’été ?", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Qué? ¡No!", "Quel vituperabile xenofobo zelante assaggia il whisky.",
    "À noite, vovô Kowalsky vê o ímã cair no pé do pinguim.", "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.", "Árvíztűrő tükörfúrógép", "Flygande bäckasiner söka hwila på mjuka tuvor.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ıspanak", "Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Щастям б'єш жук їх глицю в фон й ґедзь пріч.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. Ὀδυσσεύς", "דג סקרן שט בים מאוכזב ולפתע מצא חברה", "שָׁלוֹם עֲלֵיכֶם",
    "نص حكيم له سر قاطع وذو شأن عظيم", "الْحَمْدُ لِلَّهِ ٣٤٥", "گچ پژ — این یک آزمایش است ۱۲۳",
    "ऋषियों को सताने वाले दुष्ट राक्षसों का विनाश। १२३", "আমি বাংলায় গান গাই ৪৫৬", "வணக்கம் உலகம் ௧௨௩", "తెలుగు భాష", "ಕನ್ನಡ ಭಾಷೆ", "മലയാളം ഭാഷ",
    "ਪੰਜਾਬੀ ਬੋਲੀ", "ગુજરાતી ભાષા", "සිංහල භාෂාව", "นายสังฆภัณฑ์ เฮงพิทักษ์ฝั่ง ๑๒๓", "ພາສາລາວ", "မြန်မာဘာသာ ၁၂၃", "ភាសាខ្មែរ ១២៣", "བོད་སྐད་ ༡༢༣",
    "いろはにほへと　ちりぬるを", "視野無限廣，窗外有藍天。", "天地玄黄宇宙洪荒〇一二三", "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.", "한국어 가나다",
    "ქართული ენა", "Հայոց լեզու", "አማርኛ ቋንቋ ፩፪፫", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᐃᓄᒃᑎᑐᑦ", "ᠮᠣᠩᠭᠣᠯ᠎ᠠ", "ߒߞߏ ߁߂߃", "ⴰⵎⴰⵣⵉⵖ", "𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𝐱²",
    "Tiếng Việt: Đừng để đến ngày mai việc gì có thể làm hôm nay.", "Ðñ ß ẞ ſ ŉ ǅ ǰ ΐ ﬁ ﬃ ﬅ Å Å K Ω",
]

CODE = [
    "def f(x):\n    return x**2 + 1\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i]->b.c;\n}\n", "if (x != y && !z) { return 0x7fff_ffffULL; }",
    "#include <vector>\r\n\r\nint main() { std::cout << \"hi\\n\"; }\r\n", "SELECT * FROM t WHERE a='b''c' -- comment\n", "<div class=\"a b\">&nbsp;&#x27;</div>",
    "{\"key\": [1, 2.50e-10, null], \"k2\": \"v\\u00e9\"}", "    \n\n\n        indented\n    \n", "a=b;c+=d;e-=f;g*=h;i/=j;k%=l;m<<=n;o>>=p;",
    "https://example.org/path?q=1&r=%20#frag", "user.name+tag@example.co.uk", "C:\\Windows\\System32\\drivers\\etc", "$HOME/.config; `ls -la | grep x` && echo \"$?\"",
    "λx.λy.x ∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−L|<ε", "E=mc² ≈ 9×10¹⁶ J·kg⁻¹; ½+¼=¾", "////////////////////////////////", "================", "-----BEGIN-----", "......", "!!!???!?!",
    "1,234,567.89", "3.14159265358979", "00000000", "12345678901234567890", "1 22 333 4444 55555 666666", "v1.2.3-rc4+5", "2024-02-29T23:59:60Z", "+1 (555) 010-9999",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "i18n l10n k8s x86_64 utf8mb4", "# Title\n\n* item\n  * nested\n\n```c\nint x;\n```\n", "\\begin{equation}\\frac{a}{b}\\end{equation}",
]

SPACES = [" ", "  ", "   ", "     ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t \n", "\u00a0", "\u3000", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029", "\u0085",
          "\u1680", "\u180e", "\u202f", "\u205f", "\x0b", "\x0c", "\x1c", "\x1f", "\ufeff", " " * 15, " " * 31, " " * 64, "\n" * 7, "\t" * 9]
WORDS = ["a", "I", "the", "whale", "don't", "WE'LL", "x1", "42", "é", "日本", "мир", "!", "...", "_", "▁", "▁the", "Ġ", "Ċ", "<0x0A>", "#", "ﬁ", "👍", "‍", "\u0301", "'", "’s", "ß", "İ", "ſ"]
SPECIALS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>", ">>TITLE<<", "[MASK]", "<tok>", "Word", "été", "cat", "<|begin_of_text|>", "[ lead", "trail ]", "\u00c5ngstrom", "A\u030angstrom"]
EMOJI = ["👍", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇺🇸", "👨🏿‍🚀", "❤️", "❤", "☺️", "#️⃣", "1️⃣", "🫠", "🧑‍🎄", "🐻‍❄️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\u200d", "\ufe0f", "🩷", "🫨", "🪿", "🫟"]


def characters():
    """Characters that the tables of all parts know, by kind: assigned in Unicode 14, or letters and digits up to 16."""
    by_kind = {}
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        by_kind.setdefault(unicodedata.category(chr(c)), []).append(c)
    newer = [0x1C89, 0x10D40, 0x10D4A, 0x10D69, 0x11F04, 0x11F50, 0x1E4D0, 0x1E4EC, 0x2EBF0, 0x31350, 0x323AF, 0xA7CB, 0x16D40]
    return by_kind, newer


def make_strings(corpus):
    random.seed(20240229)
    pick, chance = random.choice, random.random
    by_kind, newer = characters()
    assigned = sorted(c for kind, members in by_kind.items() if kind not in ("Cn", "Co") for c in members)
    # The reference normalizes by tables that end at Unicode 11; younger marks would get another order.
    marks = [c for c in assigned if unicodedata.category(chr(c)) == "Mn" and c < 0x1E000 and unicodedata.combining(chr(c))
             and any(a <= c <= b for a, b in [(0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D),
                                             (0x9BC, 0x9CD), (0xE38, 0xE4B), (0xF71, 0xF84), (0x1DC0, 0x1DF5), (0x20D0, 0x20F0), (0x3099, 0x309A), (0xFE20, 0xFE2F)])]
    bases = [ord(c) for c in "aeiouAEIOUnNcszSZyYKΑαΩωИийеЕअकবก가고か하き"] + [0x1100, 0x1161, 0x11A8, 0xAC00, 0x212B, 0x2126, 0x1E9B, 0xF73, 0x344, 0x958, 0x2ADC]
    out = [""]
    out += SENTENCES + CODE + SPACES + WORDS + SPECIALS + EMOJI
    out += [chr(c) for c in range(0x80)] + [chr(c) for c in newer]

    for suffix in ["s", "t", "re", "ve", "m", "ll", "d"]:  # contractions, in all cases
        for form in {suffix, suffix.upper(), suffix.capitalize()}:
            for apostrophe in ["'", "’", " '"]:
                out.append(f"she{apostrophe}{form} IT{apostrophe}{form}x")
    out += ["'ſ ſ's 'Kelvin", "I'LL'VE'd", "''s ''''t", "rock'n'roll o'clock 'tis", "'s", "'ll ", "x'\u017f"]

    for _ in range(320):  # words among white space of all kinds
        out.append("".join(pick(WORDS) if chance() < 0.55 else pick(SPACES[:-5] if chance() < 0.9 else SPACES) for _ in range(random.randint(1, 9))))
    for _ in range(120):  # digits of many scripts
        kinds = by_kind["Nd"] + by_kind["No"] + by_kind["Nl"]
        out.append("".join(pick([chr(pick(kinds)), str(random.randrange(10 ** random.randint(1, 9))), pick(["a", " ", ",", ".", "-", "٣"])]) for _ in range(random.randint(1, 8))))
    for _ in range(110):
        out.append("".join(pick(EMOJI) if chance() < 0.7 else pick([" ", "x", "\n", "!"]) for _ in range(random.randint(1, 6))))
    for _ in range(330):  # added tokens inside text, and close misses of them
        parts = []
        for _ in range(random.randint(1, 6)):
            part = pick(SPECIALS) if chance() < 0.6 else pick(WORDS + [" ", "  ", "\n", "s", "<", "|>", "catalog", "Words", "concat", "lead", "été’s", "\u3000"])
            if chance() < 0.1:
                part = part[: random.randint(0, len(part))]
            parts.append(part)
        out.append("".join(parts))
    for length in [50, 63, 64, 65, 100, 128, 200, 300, 700]:  # long words
        out.append("a" * length)
        out.append("".join(pick("etaoinshrdlu") for _ in range(length)))
        out.append("".join(chr(random.randrange(0x4E00, 0x9FA5)) for _ in range(length // 4)))
        out.append("ab" * (length // 2))
        out.append("".join(pick("abcABC123_▁ ") for _ in range(length)))
    for _ in range(420):  # anything
        out.append("".join(chr(pick(assigned)) for _ in range(random.randint(1, 9))))
    for _ in range(90):  # any letter, number, mark, punctuation: more of what the patterns tell apart
        out.append("".join(chr(pick(by_kind[pick(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "No", "Po", "Ps", "Sm", "So", "Zs", "Cf"])])) for _ in range(random.randint(2, 10))))
    for _ in range(60):  # unassigned and private characters among letters, and the newest ones
        out.append("".join(pick([chr(pick(by_kind["Co"])), chr(pick(newer)), pick("ab 1!"), "\ue000", "\ufdd0", "\uffff", "\U0010ffff", "\ufffd"]) for _ in range(random.randint(1, 8))))
    for _ in range(60):  # control characters
        out.append("".join(chr(random.randrange(0x20)) if chance() < 0.5 else pick(["\x7f", "\x80", "\x9f", "a", " ", "b1"]) for _ in range(random.randint(1, 10))))
    for _ in range(220):  # base characters with marks, in any order
        out.append("".join(chr(pick(bases)) + "".join(chr(pick(marks)) for _ in range(random.randint(0, 4))) for _ in range(random.randint(1, 5))))
    for _ in range(230):  # running text
        start = random.randrange(len(corpus) - 200)
        out.append(corpus[start : start + random.randint(5, 110)])
    fragments = SENTENCES + CODE + SPACES + WORDS + SPECIALS + EMOJI
    for _ in range(300):  # all of it mixed
        out.append("".join(pick(fragments)[: random.randint(1, 20)] for _ in range(random.randint(2, 7))))
    return list(dict.fromkeys(out))


# ------------------------------------------------------------------------------------------------- tokenizers


def added_tokens(kind):
    """Added tokens with all combinations of options that occur, the same ones for each tokenizer but for a few."""
    tokens = [
        AddedToken("<s>", special=True, normalized=False),
        AddedToken("</s>", special=True, normalized=False, rstrip=True),
        AddedToken("<unk>", special=True, normalized=False),
        AddedToken("<|endoftext|>", special=True, normalized=False),
        AddedToken("[MASK]", special=True, normalized=False, lstrip=True),
        AddedToken("<tok>", special=False, normalized=False, lstrip=True, rstrip=True),
        AddedToken("cat", special=False, normalized=False, single_word=True),
    ]
    if kind != "plain":
        tokens += [
            AddedToken("Word", special=False, normalized=True),
            AddedToken("été", special=False, normalized=True, single_word=True),
            AddedToken("A\u030angstrom", special=False, normalized=True),
            AddedToken("[ lead", special=False, normalized=True, lstrip=True),
            AddedToken("trail ]", special=False, normalized=True, rstrip=True),
            AddedToken(" " * 3, special=False, normalized=True),
        ]
    return tokens


def train_byte_level(corpus, normalizer, pre_tokenizer, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def train_sentencepiece(corpus, vocab_size):
    """A vocabulary in the order of SentencePiece's: <unk> <s> </s>, the bytes, then pieces, single characters last."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, limit_alphabet=180, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    order = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces = sorted(learned["vocab"], key=learned["vocab"].get)
    order += [p for p in pieces if len(p) > 1] + [p for p in pieces if len(p) == 1]
    return {token: i for i, token in enumerate(order)}, [tuple(pair) for pair in learned["merges"]]


def sentencepiece(vocab, merges, normalizer, pre_tokenizer, decoder, **flags):
    options = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    options.update(flags)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    return tokenizer


def template(tokenizer, prefix, suffix=()):
    special = [(t, tokenizer.token_to_id(t)) for t in dict.fromkeys([*prefix, *suffix])]
    return processors.TemplateProcessing(single=" ".join([*prefix, "$A", *suffix]), pair=" ".join([*prefix, "$A", *prefix, "$B"]), special_tokens=special)


def small_tokenizers(corpus):
    """name -> (tokenizer, form of its merges, if any: "pairs" or "strings", edits of the file)"""
    lines = corpus.splitlines(keepends=True)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", False), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    out = {}

    t = train_byte_level(lines, None, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), 1100)
    t.add_tokens(added_tokens("all"))
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    out["gpt2"] = (t, "strings", lambda model: model["model"].pop("type"))  # as files of the first versions

    t = train_byte_level(lines, None, split(LLAMA3), 1400)
    t.add_tokens(added_tokens("all"))
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, ["<|endoftext|>"])])

    def ignore_merges(model):  # and tokens that no merges lead to, as in Llama 3
        model["model"]["ignore_merges"] = True
        model["model"]["merges"] = [m for i, m in enumerate(model["model"]["merges"]) if i % 7 != 6]

    out["llama3"] = (t, "pairs", ignore_merges)

    t = train_byte_level(lines, normalizers.NFC(), split(QWEN2), 1100)
    t.add_tokens(added_tokens("all"))
    out["qwen2"] = (t, "strings", None)

    t = train_byte_level(lines, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), split(GPT4O), 900)
    t.add_tokens(added_tokens("all"))
    t.post_processor = template(t, ["<s>", "<|endoftext|>"], ["</s>"])
    out["gpt4o"] = (t, "pairs", None)

    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                                      pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated", False)])
    t = train_byte_level(lines, None, falcon, 900)
    t.add_tokens(added_tokens("plain"))
    out["falcon"] = (t, "strings", None)

    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t = train_byte_level(lines, None, smollm, 900)
    t.add_tokens(added_tokens("plain"))
    out["smollm"] = (t, "pairs", None)

    vocab, merges = train_sentencepiece(lines, 1500)
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t = sentencepiece(vocab, merges, spaces, None, llama)
    t.add_tokens(added_tokens("all"))
    t.post_processor = template(t, ["<s>"])
    out["llama2"] = (t, "strings", None)

    t = sentencepiece(vocab, merges, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama)
    t.add_tokens(added_tokens("plain"))
    t.post_processor = template(t, ["<s>"], ["</s>"])
    out["mistral"] = (t, "pairs", None)

    # No bytes to fall back on: unknown characters, not fused; the older form of Metaspace.
    # (The library cannot encode all texts behind a Strip normalizer; steps.json has it by itself.)
    without_bytes = {token: i for i, token in enumerate(t for t in vocab if not t.startswith("<0x"))}
    t = sentencepiece(without_bytes, merges, normalizers.Replace(Regex("[\"“”]|''"), "'"), pre_tokenizers.Metaspace(), decoders.Metaspace(), byte_fallback=False, fuse_unk=False)
    t.add_tokens(added_tokens("all"))

    def old_metaspace(model):
        for part in ("pre_tokenizer", "decoder"):
            model[part] = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}

    out["metaspace"] = (t, "strings", old_metaspace)

    # Only some of the bytes, fused unknown characters, and merges of bytes: unusual, but the format allows it.
    some = {t: None for t in vocab if not t.startswith("<0x") or int(t[3:5], 16) % 3 != 1}
    some["<0xC3><0xA8>"] = some["e<0xCC>"] = some["<unk>e"] = None
    t = sentencepiece({token: i for i, token in enumerate(some)}, [("<unk>", "e"), ("<0xC3>", "<0xA8>"), ("e", "<0xCC>")] + merges, None, None, decoders.ByteFallback())
    t.add_tokens(added_tokens("plain"))
    out["odd"] = (t, "pairs", None)
    out.update(unigram_tokenizers(lines, llama))
    return out


def train_unigram(corpus, vocab_size):
    """Pieces and their scores, best first, behind <unk>, <s> and </s>."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    return [(piece, round(score, 6)) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def unigram(vocab, normalizer, pre_tokenizer, decoder, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram(vocab, 0, byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    return tokenizer


def charsmap_rules():
    """What SentencePiece's maps are made of (NFKC, white space, control characters), for some blocks of Unicode."""
    rules = {}
    for first, last in [(0xA0, 0xFF), (0x132, 0x149), (0x1C4, 0x1CC), (0x2000, 0x206F), (0x2100, 0x218B), (0x2460, 0x24EA), (0xFB00, 0xFB06), (0xFF01, 0xFFBE), (0x1D538, 0x1D550), (0x30000, 0x30000)]:
        for c in range(first, last + 1):
            if unicodedata.normalize("NFKC", chr(c)) != chr(c):
                rules[chr(c)] = unicodedata.normalize("NFKC", chr(c))
    for base in "aeioucnsyAEIOUCNSYかきカハ가㈀":
        for mark in "\u0300\u0301\u0302\u0303\u0308\u030c\u0327\u3099\u309a\u11a8":
            if len(unicodedata.normalize("NFKC", base + mark)) == 1:
                rules[base + mark] = unicodedata.normalize("NFKC", base + mark)
    rules |= {chr(c): "" for c in [*range(1, 9), *range(14, 32), 0x7F, 0x200B]} | {c: " " for c in "\t\n\r\u3000\u2028\u0085"}
    # A character with its own rule hides the rules that begin with it.
    return rules | {"\r\n": "!", "Z": "z", "Z\u030c": "ž", "Zz": "?", "q\u0301": "qq", "…": "...", "🫠": "melting"}


def charsmap(rules):
    """The rules as SentencePiece stores them (lib/tokenizer/unicode.hpp says how)."""
    places, text = {}, b""
    for replacement in dict.fromkeys(rules.values()):
        places[replacement] = len(text)
        text += replacement.encode() + b"\0"
    root = {}
    for string, replacement in sorted(rules.items()):
        node = root
        for byte in string.encode():
            node = node.setdefault(byte, {})
        node[0] = places[replacement]  # no string holds a zero byte
    units, used, bases, nodes = [0] * 256, {0}, set(), [(root, 0, 0)]
    start = 1
    for node, at, label in nodes:
        base = next(b for b in range(start, 1 << 20) if b not in bases and not any(b ^ c in used for c in node))
        bases.add(base)
        used.update(base ^ c for c in node)
        while start in used:
            start += 1
        units += [0] * max((base | 255) + 1 - len(units), 0)
        units[at] = (at ^ base) << 10 | (0 in node) << 8 | label
        if 0 in node:
            units[base] = 1 << 31 | node[0]
        nodes += [(child, base ^ c, c) for c, child in node.items() if c != 0]
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + text


def unigram_tokenizers(lines, llama):
    out = {}
    vocab = train_unigram(lines, 1300)
    t = unigram(vocab, None, pre_tokenizers.Metaspace(), decoders.Metaspace())
    t.add_tokens(added_tokens("all"))
    t.post_processor = template(t, [], ["</s>"])
    out["unigram"] = (t, None, None)

    # Whole texts as one piece, bytes to fall back on.
    all_bytes = [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    t = unigram(vocab[:3] + all_bytes + vocab[3:], normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama, byte_fallback=True)
    t.add_tokens(added_tokens("plain"))
    t.post_processor = template(t, ["<s>"])
    out["unigram-bytes"] = (t, None, None)

    # Unusual, but the format allows it: many equal sums, an unknown token that is better than some pieces, pieces that only consist
    # of unknown characters, and only some of the bytes.
    few = [(piece, float(round(score / 3))) for piece, score in vocab[3:] if len(piece) > 1 or piece not in "bdgkw"]
    few += [(piece, 20.0) for piece in ("bg", "kw", "日本", "<0xC3><0xA8>")] + [("s" * n, 0.5 * n) for n in (2, 3, 5)] + [("a" * n, -1.0) for n in range(2, 30)]
    few = list(dict(few).items())
    some_bytes = [pair for i, pair in enumerate(all_bytes) if i % 3 != 1]
    t = unigram([("<unk>", 20.0)] + [(piece, score + 20.0) for piece, score in few] + some_bytes, None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False), decoders.ByteFallback(), byte_fallback=True)
    t.add_tokens(added_tokens("plain"))
    out["unigram-odd"] = (t, None, None)

    # The normalizer of T5 and XLM-RoBERTa, whose results Metaspace must find the beginning of the text in.
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    t = unigram(vocab, normalizers.Precompiled(charsmap(charsmap_rules())), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(), first]), decoders.Metaspace())
    t.add_tokens(added_tokens("all"))
    t.post_processor = template(t, ["<s>"], ["</s>"])
    out["unigram-map"] = (t, None, None)
    return out


def save(name, tokenizer, form, edit):
    model = json.loads(tokenizer.to_str())
    if form == "strings":
        model["model"]["merges"] = [" ".join(pair) for pair in model["model"]["merges"]]
    if edit is not None:
        edit(model)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(model, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------- fixtures


def digits_of(value, count):
    return "".join(DIGITS[value >> (6 * i) & 63] for i in reversed(range(count)))


def write_ids(name, path, place, strings):
    tokenizer = Tokenizer.from_file(str(path))
    count = 2 if tokenizer.get_vocab_size() <= 4096 else 3
    about = {"tokenizer": place, "digits": count, "around": [tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids], "size": max(tokenizer.get_vocab().values()) + 1}
    lines = [json.dumps(about)]
    crashes = 0
    for string in strings:
        try:
            ids = tokenizer.encode(string, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library (in its accounts of offsets): nothing to compare with
            if "PanicException" not in type(error).__name__:
                raise
            crashes += 1
            lines.append("!")
            continue
        text = tokenizer.decode(ids, skip_special_tokens=False)
        lines.append("".join(digits_of(i, count) for i in ids) + f" {zlib.crc32(text.encode()):08x}")
    (OUT / f"{name}.ids").write_text("\n".join(lines) + "\n", encoding="ascii")
    print(name, tokenizer.get_vocab_size(), "tokens,", sum(len(line) for line in lines), "bytes,", crashes, "strings that the library cannot encode")


def write_bytes(names):
    random.seed(7)
    samples = [b"\x80", b"a\xffb", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xc3", b"x\xe2\x82", b"\xe2\x82 y", b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80",
               b"\xc3\xa9\xc3", b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc", b"ok \xfe\xff", b"\xed\xbf\xbf\xed\xa0\x80", b"\xc1\x81"]
    good = "aé日😀 \n".encode()
    for _ in range(200):
        data = bytearray(random.choice([good, b"the whale ", "Ελλάδα".encode(), bytes(range(0x78, 0xFF, 9))]) * random.randint(1, 2))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data))
            if random.random() < 0.5:
                data[at] = random.randrange(256)
            else:
                del data[at]
                if not data:
                    data = bytearray(b"\xff")
        samples.append(bytes(data))
    out = {"bytes": [s.hex() for s in samples], "ids": {}}
    for name in names:
        tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
        out["ids"][name] = [tokenizer.encode(s.decode("utf-8", "replace"), add_special_tokens=False).ids for s in samples]
    (OUT / "bytes.json").write_text(json.dumps(out, separators=(",", ":")), encoding="ascii")


# Patterns that test the translation from Oniguruma to PCRE2 (tokenizer_regex.hpp).
PATTERNS = [
    r"\s", r"\S+", r"\d", r"\D+", r"\w+", r"\W", r"\h+", r"\H", r"\v", r"\R", r"\N+", r"\O", r"[\s]", r"[^\s]+", r"[\S]", r"[^\S\r\n]+", r"[\w-]+", r"[^\W_]+", r"[\W\d]+", r"[\D]", r"\b", r"\B", r"\bt\w+", r"\w\b",
    r"^.", r".$", r"\A.", r".\z", r".\Z", r"(?m).+", r".+", r"(?m:a.)b", r"a(?i)b|c", r"(?i)the|WE", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"(?i:[a-k]+)", r"(?i:[^a-k]+)", r"(?i:k)", r"(?i-i:a)|x", r"(?-i:A)",
    r"a{2}", r"a{2}+", r"a{1,3}+", r"a{2}?", r"a{1,3}?", r"a{,2}", r"a{2,}", r"a**", r"a+*", r"a++", r"a*+a", r"a?+a", r"(?:ab)+", r"(ab)+?", r"x{", r"x{a}|{,}", r"[ab]{2}", r"\p{L}{1,3}+",
    r"[]a]+", r"[a-]+", r"[-a]+", r"[a\-z]+", r"[a-c-e]+", r"[a\]]", r"[\[\]]", r"[a[bc]]+", r"[^a[bc]]+", r"[a-z&&[^aeiou]]+", r"[a-z&&[^aeiou]&&[^x]]", r"[^a-z&&[^aeiou]]", r"[\p{L}&&[^\p{Lu}]]+", r"[[:alpha:]1]+",
    r"[[:^space:]]+", r"[[:punct:]]", r"[[:digit:][:space:]]+", r"[[:upper:]]", r"[[:lower:]]+", r"[[:xdigit:]]+", r"[[:blank:]]+", r"[[:cntrl:]]", r"[[:word:]]+", r"[[:alnum:]]+",
    r"\p{L}+", r"\P{L}", r"\p{^L}+", r"\P{^L}+", r"[\p{^L}]+", r"[\P{L}a]+", r"[^\P{L}]+", r"\p{Letter}+", r"\p{lowercase letter}+", r"\p{LC}+", r"\p{N}", r"\p{Nd}+", r"\p{P}+", r"\p{S}", r"\p{M}+", r"\p{Z}", r"\p{C}", r"\p{Cn}",
    r"[\p{C}a]", r"\p{Lu}\p{Ll}*", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{Han}+", r"[\p{Han}\p{Hiragana}\p{Katakana}ー]+", r"\p{Cyrillic}+", r"\p{Greek}", r"\p{Latin}+", r"\p{Thai}+", r"\p{Hangul}", r"\p{Arabic}+", r"\p{Alphabetic}+", r"\p{Any}", r"\p{ASCII}+", r"\p{Space}", r"\p{Word}+",
    r"\u0061|\u00e9", r"[\u4e00-\u9fff]+", r"\x{1F600}", r"\x41", r"[\x{1F300}-\x{1FAFF}]", r"[一-龥]+", r"\t|\n|\r|\f|\a|\e", r"\.|\+|\*|\?|\(|\)|\||\^|\$|\{|\}|\\|\/|\-|\'|\"|\#|\_|\ |\@|\é", r"[!-/:-@\[-`{-~]+", r"[.+*?()|^$\\]+",
    r"(?<=a)b", r"(?<!a)b", r"a(?=b)", r"a(?!b)", r"(?>a+)b", r"(?<=a|bc)\w", r"(?=b)", r"b|$", r"x*", r"", r"a|", r"|a", r"(?:a|b)(?:c|)", r"((a)(b))", r"\s+(?!\S)|\s+", r"\s+$", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+",
    LLAMA3, QWEN2, GPT4O, r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
]


def write_steps(strings):
    random.seed(11)
    chosen = [strings.index(s) for s in SENTENCES[:2] + SENTENCES[13:20] + [SENTENCES[-1]] + CODE[:8] + ["3.14159265358979"]] + random.sample(range(len(strings)), 90)
    split = pre_tokenizers.Split
    steps, normal = [], []
    patterns = [split(Regex(p), "isolated", False) for p in PATTERNS]
    behaviors = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
    others = [split(p, b, invert) for p in (Regex(r"\s"), Regex(r"\w+"), " ", "the", Regex(r"x*")) for b in behaviors for invert in (False, True)]
    others += [pre_tokenizers.Punctuation(b) for b in behaviors] + [pre_tokenizers.Digits(True), pre_tokenizers.Digits(False), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit()]
    others += [pre_tokenizers.Metaspace(prepend_scheme=p, split=s) for p in ("first", "never", "always") for s in (True, False)]
    others += [pre_tokenizers.ByteLevel(add_prefix_space=a, use_regex=r) for a in (True, False) for r in (True, False)]
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    others += [pre_tokenizers.Sequence([pre_tokenizers.Digits(True), metaspace]), pre_tokenizers.Sequence([split(" ", "isolated", False), metaspace]),
               pre_tokenizers.Sequence([metaspace, split("▁", "isolated", False), pre_tokenizers.Metaspace(replacement="#", prepend_scheme="first", split=False)]),
               pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), pre_tokenizers.Digits(True), metaspace]),
               pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Sequence([pre_tokenizers.Punctuation()])])]
    for number, step in enumerate(patterns + others):
        cases = {}
        for i in random.sample(chosen, 40) if number < len(patterns) else chosen:
            cases[i] = [piece for piece, _ in step.pre_tokenize_str(strings[i])]
        steps.append({"step": json.loads(step.__getstate__()), "pieces": cases})
    for step in [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Strip(right=False), normalizers.Strip(left=False),
                 normalizers.Prepend("▁"), normalizers.Prepend(""), normalizers.Replace(" ", "▁"), normalizers.Replace("", "-"), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"(?i)the"), ""),
                 normalizers.Replace(Regex("x*"), "#"), normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(r"\p{M}"), ""), normalizers.Lowercase(), normalizers.NFC()])]:
        cases = {i: step.normalize_str(strings[i]) for i in chosen}
        normal.append({"step": json.loads(step.__getstate__()), "texts": cases})
    # Metaspace puts a space before the beginning of the text, also if a normalizer changed that beginning.
    first = []
    for normalizer in [normalizers.Strip(), normalizers.Prepend("_"), normalizers.Replace("``", '"'), normalizers.Replace(Regex("^a+"), "b"), normalizers.Replace("", "-"), normalizers.Lowercase(), normalizers.NFC(), normalizers.NFD()]:
        tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0, "▁": 1, "x": 2}, merges=[], unk_token="<unk>"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(Regex("[_x]"), "isolated", False), metaspace])
        tokenizer.add_tokens([AddedToken("<a>", normalized=False), AddedToken("<n>", normalized=True)])
        texts = ["x", " x", "ax", "aax", "``x", "x``x", "_x", "éx", "e\u0301x", "İx", "<a>x", "<n>x", "x<n>x", "<a>x x<a> x", "  <n> x", "", " ", "axx"]
        first.append({"tokenizer": json.loads(tokenizer.to_str()), "ids": {text: tokenizer.encode(text).ids for text in texts}})
    data = {"pre_tokenizers": steps, "normalizers": normal, "beginnings": first}
    (OUT / "steps.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    print("steps.json", (OUT / "steps.json").stat().st_size)


def main():
    print("tokenizers", tokenizers.__version__, "Unicode", unicodedata.unidata_version)
    OUT.mkdir(exist_ok=True)
    read = lambda name: (TEXT / name).read_text(encoding="utf-8")
    corpus = read("moby-dick-pg2701.stripped.txt")[200_000:600_000] + read("pride-and-prejudice-pg1342.stripped.txt")[100_000:300_000] + read("tinyshakespeare.txt")[:200_000]
    if ONLY:
        strings = json.loads((OUT / "strings.json").read_text(encoding="utf-8"))
    else:
        strings = make_strings(corpus)
        (OUT / "strings.json").write_text("[" + ",\n".join(json.dumps(s, ensure_ascii=False) for s in strings) + "]\n", encoding="utf-8")
    print(len(strings), "strings,", sum(len(s) for s in strings), "characters")
    training = corpus + ("\n".join(SENTENCES + CODE) + "\n") * 3
    small = small_tokenizers(training)
    for name, (tokenizer, form, edit) in small.items():
        if ONLY and name not in ONLY:
            continue
        path = save(name, tokenizer, form, edit)
        write_ids(name, path, f"test/golden/tokenizer/{name}.json", strings)
    if ONLY:
        return
    write_ids("demo-model", ROOT / "data/demo-model/tokenizer.json", "data/demo-model/tokenizer.json", strings)
    for path in sorted(MODELS.glob("tokenizers/*.json")) + [MODELS / "stories260K/tokenizer.json"]:
        place = path.relative_to(MODELS)
        name = "real-" + (path.name.removesuffix(".tokenizer.json") if path.parent.name == "tokenizers" else path.parent.name)
        write_ids(name, path, f"../shared/models/{place}", strings)
    write_bytes(["gpt2", "qwen2", "llama2", "metaspace"])
    write_steps(strings)


main()
