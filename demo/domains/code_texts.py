"""Seen templates of the code domain that work on text and on dictionaries."""

from __future__ import annotations

import random

from .code_parts import (
    DICT_NAMES,
    LIST_NAMES,
    TEXT_NAMES,
    Draft,
    char_class,
    int_dict,
    int_list,
    messy_text,
    predicate,
    templates,
    transform,
    word_func,
    word_pred,
    word_text,
)

EMPTY_TEXT = (("",),)
EMPTY_DICT = (({},),)


def _count_chars(rng: random.Random) -> Draft:
    c, a = char_class(rng), rng.choice(TEXT_NAMES)
    k = rng.choice([0, 0, 0, 1, 2, 3, 5, 10])
    tail = f" + {k}" if k else ""
    plus = f" plus {k}" if k else ""
    return Draft(
        f"{c.key}|{k}",
        (a,),
        (
            f"the number of {c.pl} in `{a}`{plus}",
            f"the total count of {c.pl} that occur in `{a}`{plus}",
        ),
        f"the number of {c.doc}{plus}",
        (f"return sum(1 for ch in {a} if {c('ch')}){tail}",),
        lambda: (messy_text(rng, c.pool),),
        EMPTY_TEXT,
        ("count", "tally"),
    )


def _strip_chars(rng: random.Random) -> Draft:
    c, a = char_class(rng), rng.choice(TEXT_NAMES)
    keep = rng.random() < 0.5
    method, how = rng.choice(
        [("", ""), (".upper()", " in uppercase"), (".lower()", " in lowercase")]
    )
    test = c("ch") if keep else f"not {c('ch')}"
    what = f"only the {c.pl} of `{a}`" if keep else f"`{a}` without its {c.pl}"
    doc = f"only the {c.doc}" if keep else f"the text without {c.doc}"
    return Draft(
        f"{keep}|{c.key}|{method}",
        (a,),
        (f"{what}, as a string{how}", f"a string{how} with {what}"),
        f"{doc}{how}",
        (f'return "".join(ch for ch in {a} if {test}){method}',),
        lambda: (messy_text(rng, c.pool),),
        EMPTY_TEXT,
        ("strip", "clean", "keep"),
    )


def _char_positions(rng: random.Random) -> Draft:
    c, a = char_class(rng), rng.choice(TEXT_NAMES)
    start = rng.choice([0, 0, 1, 10, 100])
    arg = f", {start}" if start else ""
    says = f"counting from {start}"
    return Draft(
        f"{c.key}|{start}",
        (a,),
        (
            f"a list of the positions ({says}) of the {c.pl} in `{a}`",
            f"the indices, {says}, where `{a}` has {c.pl}, as a list",
        ),
        f"the positions of the {c.doc}",
        (f"return [i for i, ch in enumerate({a}{arg}) if {c('ch')}]",),
        lambda: (messy_text(rng, c.pool),),
        EMPTY_TEXT,
        ("locate", "index", "find"),
    )


def _filter_words(rng: random.Random) -> Draft:
    p, a = word_pred(rng), rng.choice(TEXT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a list of the words in `{a}` that {p.pl}",
            f"a list with every word of `{a}` that {p.sg}",
        ),
        f"the words that {p.doc}",
        (f"return [w for w in {a}.split() if {p('w')}]",),
        lambda: (word_text(rng, p.pool),),
        EMPTY_TEXT,
        ("filter", "select", "pick"),
    )


def _count_words(rng: random.Random) -> Draft:
    p, a = word_pred(rng), rng.choice(TEXT_NAMES)
    return Draft(
        p.key,
        (a,),
        (f"how many words in `{a}` {p.pl}", f"the number of words of `{a}` that {p.pl}"),
        f"how many words {p.doc}",
        (
            "count = 0",
            f"for w in {a}.split():",
            f"    if {p('w')}:",
            "        count += 1",
            "return count",
        ),
        lambda: (word_text(rng, p.pool),),
        EMPTY_TEXT,
        ("count", "tally"),
    )


def _map_words(rng: random.Random) -> Draft:
    f, a = word_func(rng), rng.choice(TEXT_NAMES)
    sep, name = rng.choice(
        [(" ", "a space"), ("-", "a dash"), (",", "a comma"), ("_", "an underscore"), ("", "")]
    )
    how = f"joined by {name}" if sep else "joined without a separator"
    return Draft(
        f"{f.key}|{sep}",
        (a,),
        (
            f"a string with {f.of('w')} for each word w of `{a}`, {how}",
            f"the words of `{a}` {how}, after taking {f.of('each word')}",
        ),
        f"{f.doc_of('each word')}, {how}",
        (f'return "{sep}".join({f("w")} for w in {a}.split())',),
        lambda: (word_text(rng),),
        EMPTY_TEXT,
        ("join", "rewrite", "format"),
    )


def _filter_map_words(rng: random.Random) -> Draft:
    p, f, a = word_pred(rng), word_func(rng), rng.choice(TEXT_NAMES)
    return Draft(
        f"{p.key}|{f.key}",
        (a,),
        (
            f"a list that holds {f.of('w')} for every word w in `{a}` that {p.sg}",
            f"a list of {f.of('w')} for each word w of `{a}` that {p.sg}",
        ),
        f"{f.doc_of('each word')} that {p.sg}",
        (f"return [{f('w')} for w in {a}.split() if {p('w')}]",),
        lambda: (word_text(rng, p.pool),),
        EMPTY_TEXT,
        ("select", "map", "convert"),
    )


def _replace_char(rng: random.Random) -> Draft:
    a = rng.choice(TEXT_NAMES)
    old, new = rng.choice("abdeilmnorstu"), rng.choice("*-#_.+x")
    method, how = rng.choice(
        [("", ""), (".upper()", ", all in uppercase"), ("[::-1]", ", reversed")]
    )
    return Draft(
        f"{old}|{new}|{method}",
        (a,),
        (
            f'`{a}` with every "{old}" replaced by "{new}"{how}',
            f'a copy of `{a}` that has "{new}" in place of each "{old}"{how}',
        ),
        f'the text with "{new}" for "{old}"{how}',
        (f'return {a}.replace("{old}", "{new}"){method}',),
        lambda: (word_text(rng, (ord(old),), 1, 3),),
        EMPTY_TEXT,
        ("replace", "swap", "mask"),
    )


def _wrap_text(rng: random.Random) -> Draft:
    f, a = word_func(rng), rng.choice(TEXT_NAMES)
    pre, post = rng.choice(["<", "[", "(", "*", ">>", "--"]), rng.choice([">", "]", ")", "*", "!"])
    return Draft(
        f"{f.key}|{pre}|{post}",
        (a,),
        (
            f'a string made of "{pre}", {f.of(f"`{a}`")} and "{post}"',
            f'{f.of(f"`{a}`")}, with "{pre}" put in front of it and "{post}" behind it',
        ),
        f'{f.doc_of("the text")} between "{pre}" and "{post}"',
        (f'return "{pre}" + {f(a)} + "{post}"',),
        lambda: (word_text(rng, (), 1, 2),),
        EMPTY_TEXT,
        ("wrap", "format", "frame"),
    )


def _check_text(rng: random.Random) -> Draft:
    p, q, a = word_pred(rng), word_pred(rng), rng.choice(TEXT_NAMES)
    while q.code[:7] == p.code[:7]:
        q = word_pred(rng)
    word = rng.choice(["and", "or"])
    return Draft(
        f"{p.key}|{word}|{q.key}",
        (a,),
        (
            f"True if `{a}` {p.sg} {word} {q.sg}, and False otherwise",
            f"whether `{a}` {p.sg} {word} {q.sg}",
        ),
        f"whether the text {p.sg} {word} {q.sg}",
        (f"return {p(a)} {word} {q(a)}",),
        lambda: (word_text(rng, rng.choice([p.pool, q.pool]), 1, 1),),
        EMPTY_TEXT,
        ("check", "is", "test"),
    )


def _join_ints(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(LIST_NAMES)
    sep = rng.choice([",", "-", ";", " ", "/", "+"])
    return Draft(
        f"{p.key}|{sep}",
        (a,),
        (
            f'a string of the numbers in `{a}` that {p.pl}, joined by "{sep}"',
            f'the numbers in `{a}` that {p.pl} as one string with "{sep}" between them',
        ),
        f'numbers that {p.doc}, joined by "{sep}"',
        (f'return "{sep}".join(str(x) for x in {a} if {p("x")})',),
        lambda: (int_list(rng, p.pool),),
        (([],),),
        ("join", "format", "print"),
    )


def _dict_filter(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(DICT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a dictionary with the items of `{a}` whose values {p.pl}",
            f"a copy of the dictionary `{a}` that keeps only values that {p.pl}",
        ),
        f"the items whose values {p.doc}",
        (f"return {{k: v for k, v in {a}.items() if {p('v')}}}",),
        lambda: (int_dict(rng, p.pool),),
        EMPTY_DICT,
        ("filter", "keep", "select"),
    )


def _dict_keys(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(DICT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"a sorted list of the keys of `{a}` whose values {p.pl}",
            f"the keys in the dictionary `{a}` with values that {p.pl}, sorted",
        ),
        f"the sorted keys whose values {p.doc}",
        (f"return sorted(k for k, v in {a}.items() if {p('v')})",),
        lambda: (int_dict(rng, p.pool),),
        EMPTY_DICT,
        ("list", "keys", "find"),
    )


def _dict_sum(rng: random.Random) -> Draft:
    p, a = predicate(rng), rng.choice(DICT_NAMES)
    return Draft(
        p.key,
        (a,),
        (
            f"the sum of the values in the dictionary `{a}` that {p.pl}",
            f"the total of all values of the dictionary `{a}` that {p.pl}",
        ),
        f"the sum of values that {p.doc}",
        (f"return sum(v for v in {a}.values() if {p('v')})",),
        lambda: (int_dict(rng, p.pool),),
        EMPTY_DICT,
        ("sum", "total", "add"),
    )


def _dict_map(rng: random.Random) -> Draft:
    t, a = transform(rng), rng.choice(DICT_NAMES)
    return Draft(
        t.key,
        (a,),
        (
            f"a dictionary with the keys of `{a}` and {t.of('each value')}",
            f"a dictionary like `{a}` in which each value v becomes {t.of('v')}",
        ),
        f"the dictionary with {t.doc_of('each value')}",
        (f"return {{k: {t('v')} for k, v in {a}.items()}}",),
        lambda: (int_dict(rng),),
        EMPTY_DICT,
        ("map", "update", "convert"),
    )


def _dict_build(rng: random.Random) -> Draft:
    p, t, a = predicate(rng), transform(rng), rng.choice(LIST_NAMES)
    return Draft(
        f"{p.key}|{t.key}",
        (a,),
        (
            f"a dictionary that maps each number in `{a}` that {p.sg} to {t.of('that number')}",
            f"a dictionary from x to {t.of('x')} for every x in `{a}` that {p.sg}",
        ),
        f"a dictionary from x to {t.doc_of('x')} if x {p.sg}",
        (f"return {{x: {t('x')} for x in {a} if {p('x')}}}",),
        lambda: (int_list(rng, p.pool, 2, 4),),
        (([],),),
        ("map", "lookup", "index"),
    )


def _dict_count(rng: random.Random) -> Draft:
    c, a = char_class(rng), rng.choice(TEXT_NAMES)
    method, how = rng.choice(
        [("", ""), (".lower()", " after lowercasing"), (".upper()", " after uppercasing")]
    )
    while c.key.startswith("eq") or (method and c.key in ("upper", "lower")):
        c = char_class(rng)
    return Draft(
        f"{c.key}|{method}",
        (a,),
        (
            f"a dictionary that counts each of the {c.pl} in `{a}`{how}",
            f"how often each of the {c.pl} occurs in `{a}`{how}, as a dictionary",
        ),
        f"counts of the {c.doc}{how}",
        (
            "counts = {}",
            f"for ch in {a}{method}:",
            f"    if {c('ch')}:",
            "        counts[ch] = counts.get(ch, 0) + 1",
            "return counts",
        ),
        lambda: (messy_text(rng, c.pool),),
        EMPTY_TEXT,
        ("count", "tally"),
    )


TEXT_TEMPLATES = templates(
    _count_chars,
    _strip_chars,
    _char_positions,
    _filter_words,
    _count_words,
    _map_words,
    _filter_map_words,
    _replace_char,
    _wrap_text,
    _check_text,
    _join_ints,
    _dict_filter,
    _dict_keys,
    _dict_sum,
    _dict_map,
    _dict_build,
    _dict_count,
)
