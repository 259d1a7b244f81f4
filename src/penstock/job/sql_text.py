"""The tokens of `sql:` texts: enough to refuse what is no projection or row filter (RULES P4).

Spark parses the text when the job starts, and with `check --deep`; here only what would change the number of rows or
reach beyond its row is found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.job.faults import RefusedError

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--|/\*)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<number>[0-9][\w.]*)
      | (?P<word>[^\W\d]\w*)
      | (?P<open>['"`])
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATES = _words(
    """any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bitmap_construct_agg
    bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp
    every first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kurtosis last last_value
    listagg max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev
    stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance"""
)
_WINDOWS = _words(
    "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number session_window window window_time"
)
_GENERATORS = _words(
    """explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
    variant_explode variant_explode_outer"""
)
_REASONS = {
    "select": "a subquery reads other rows",
    "join": "a join reads other tables",
    "having": "grouping makes one row of many",
    "union": "a set operation reads other tables",
    "intersect": "a set operation reads other tables",
    "lateral": "a lateral view makes many rows of one",
    "pivot": "a pivot makes one row of many",
    "unpivot": "an unpivot makes many rows of one",
    "from": "an expression reads no tables",
    "over": "a window function reads other rows",
    "distinct": "it compares rows with each other",
    "group by": "grouping makes one row of many",
    "order by": "sorting reaches beyond a row",
    "sort by": "sorting reaches beyond a row",
    "cluster by": "sorting reaches beyond a row",
    "distribute by": "shuffling reaches beyond a row",
}
_CLOSING = {"(": ")", "[": "]"}
_OPERATORS = frozenset("+-*/%=<>!&|^~.:,([")
_LIKE = _words("like ilike rlike")
_HOW = "sql is one output row per input row: expressions in select, a condition in where"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL text; a `quoted` one without its backticks."""

    kind: str
    text: str
    depth: int
    """How many brackets are open around it."""

    @property
    def folded(self) -> str:
        """A keyword or mark to compare with; nothing for what is quoted."""
        return self.text.lower() if self.kind in ("word", "mark") else ""


class SqlRefusedError(RefusedError):
    """The text is more than an expression over one row."""

    def __init__(self, message: str, hint: str = _HOW) -> None:
        super().__init__(message, hint)


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One entry of `select`: its output name where the text tells it, and the path if it is a plain column."""

    name: str | None
    path: tuple[str, ...] | None


def check_where(text: str) -> None:
    """Refuse whatever is no condition over one row."""
    if _naming_positions(_checked(text)):
        raise SqlRefusedError("where is a condition and has no name", "remove the `as`")


def read_select(text: str) -> SelectItem:
    """Refuse whatever is no expression over one row, and find the name of its column."""
    tokens = _checked(text)
    naming = _naming_positions(tokens)
    if naming:
        if naming != [len(tokens) - 2] or naming == [0] or tokens[-1].kind not in ("word", "quoted"):
            raise SqlRefusedError(
                "one `as` and one name end an entry", "a name with odd characters is written in `backticks`"
            )
        return SelectItem(tokens[-1].text, _path(tokens[:-2]))
    path = _path(tokens)
    if path is not None:
        return SelectItem(path[-1], path)
    if len(tokens) > 1 and tokens[-1].kind in ("word", "quoted") and tokens[-2].folded not in _OPERATORS:
        # `upper(method) shout` and `case ... end` look alike from here: Spark will tell.
        return SelectItem(None, None)
    raise SqlRefusedError("the column has no name", "end it with `as name`")


def _checked(text: str) -> list[Token]:
    """The tokens of a text without its blanks, none of which is refused."""
    tokens: list[Token] = []
    closing: list[str] = []
    """What closes each open bracket."""
    for match in _TOKEN.finditer(text):
        kind, piece = str(match.lastgroup), match.group()
        if kind == "space":
            continue
        if kind == "comment":
            raise SqlRefusedError("comments are not allowed in sql", "put the comment into the YAML")
        if kind == "open":
            raise SqlRefusedError(f"the quote {piece} is never closed", "")
        if piece in _CLOSING.values() and (not closing or closing.pop() != piece):
            raise SqlRefusedError(f"the bracket {piece} closes nothing", "")
        if piece == "," and not closing:
            raise SqlRefusedError("a comma outside of brackets: one entry holds one expression", "make it two entries")
        if piece == ";":
            raise SqlRefusedError("a semicolon ends a statement, and this is an expression", "remove it")
        tokens.append(Token(kind, piece[1:-1].replace("``", "`") if kind == "quoted" else piece, len(closing)))
        if piece in _CLOSING:
            closing.append(_CLOSING[piece])
    if closing:
        raise SqlRefusedError(f"a bracket {closing[-1]} is missing", "")
    if not tokens:
        raise SqlRefusedError("there is no expression", "")
    words = ["(", *(token.folded for token in tokens), ""]
    for token, before, after in zip(tokens, words, words[2:], strict=False):
        _check_token(token, before, after)
    return tokens


def _check_token(token: Token, before: str, after: str) -> None:
    """Refuse a word or mark that reaches beyond its row."""
    word = token.folded
    if token.kind in ("word", "quoted") and token.text.lower().startswith("_penstock"):
        raise SqlRefusedError("columns that begin with _penstock are Penstock's own", "")
    if word == "*" and before in ("(", ",", "."):
        raise SqlRefusedError("* stands only as an entry of its own", "write - '*', or name the columns")
    if token.kind != "word" or before == ".":
        return
    phrase = f"{word} by" if after == "by" else word
    # `is distinct from` compares values of one row, and inside brackets a `from` may stand between arguments.
    is_harmless = {
        "over": before != ")",
        "distinct": after == "from",
        "from": before == "distinct" or token.depth > 0,
    }
    if phrase in _REASONS and not is_harmless.get(phrase, False):
        hint = f"{_HOW}; a column of that name is written `{word}` with its backticks" if phrase == word else _HOW
        raise SqlRefusedError(f"{phrase}: {_REASONS[phrase]}", hint)
    if after == "(":
        _check_function(word, before)


def _check_function(name: str, before: str) -> None:
    if name in _AGGREGATES and before not in _LIKE:
        hint = {"max": "greatest(...) compares columns", "min": "least(...) compares columns"}.get(name, _HOW)
        raise SqlRefusedError(f"{name}() is an aggregate: it makes one row of many", hint)
    if name in _WINDOWS:
        raise SqlRefusedError(f"{name}() is a window function: it reads other rows")
    if name in _GENERATORS:
        raise SqlRefusedError(f"{name}() is a generator: it makes many rows of one")


def _naming_positions(tokens: list[Token]) -> list[int]:
    """Where an `as` stands outside of all brackets."""
    return [
        index
        for index, token in enumerate(tokens)
        if token.folded == "as" and token.depth == 0 and (index == 0 or tokens[index - 1].folded != ".")
    ]


def _path(tokens: list[Token]) -> tuple[str, ...] | None:
    names, dots = tokens[::2], tokens[1::2]
    is_path = (
        len(tokens) % 2 == 1
        and all(token.kind in ("word", "quoted") for token in names)
        and all(token.folded == "." for token in dots)
        and not (len(tokens) == 1 and tokens[0].folded in ("true", "false", "null"))
    )
    return tuple(token.text for token in names) if is_path else None
