"""Constrains text to a JSON schema, a regular expression or a grammar, with the library ``llguidance``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import short_repr
from ggplug_models.sampling.gbnf import to_lark
from ggplug_models.sampling.grammar_limits import check_grammar, check_pattern, read_schema
from ggplug_models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


MARK = b"\xff"

SPACES = r"\n?[ \t]{0,20}"
"""White space between the parts of JSON; without a limit, a model can generate it endlessly."""


LENIENT: Mapping[str, Any] = {"lenient": True, "coerce_one_of": True}
"""The library's options for schemas with parts that it does not support."""


LIMITS: Mapping[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
}
"""Limits of the library's computation at the start and for each token, about 20 ms each; states have up to 2 KiB."""


UNFORCED = '\n%llguidance {"no_forcing": true}'
"""The library's option to let the model choose tokens also where only one text is allowed; the last one of a grammar
counts.  Otherwise the library looks how far that text goes, for ever if it has no end: in ``T "ab"`` with the terminal
``T: "a"+`` only further ``a`` are allowed, because a terminal matches as much as it can."""


_WORDS = (
    (r"^at \d+\(\d+\): (failed to compile JSON schema: )?", ""),  # in a grammar with several schemas
    ("^NoExtension(Bias)?$", "no text matches it: a rule begins with itself, or allows nothing"),
    ("^(Parser|Lexer)TooComplex$|.*Too many items.*|.*Current row has .*", "it is too complex, or endless"),
    (r"^Unimplemented keys: \[(.*)\]", r"it uses keys that are not supported: \1"),
    ("^oneOf constraints are not supported.*", "it uses oneOf, which is not supported; use anyOf instead"),
    (r"^(at )?\d+\(\d+\): lark grammar too deeply nested.*", "its parentheses are nested too deeply"),
    (r"^Resource '(json-schema:///)?([^']*)($|' is not present.*)", r"it refers to \2, which it does not contain"),
    ("^Pointer '([^']*)($|' does not exist)", r"it refers to \1, which it does not contain"),
)
"""Replacements for the library's error messages, in the order in which they are applied."""

LONGEST_ERROR = 1000
"""Characters of an error message of the library that are read; it may repeat a long text of the schema."""


class NoEndTokenError(ModelError):
    """A text with a grammar cannot end, because the vocabulary has no end token."""


class Grammars:
    """Makes constraints for the texts of one tokenizer.  It reads the whole vocabulary, so keep it with the model.

    ``n_vocab``: number of logits of the model, if that is more than the tokenizer has tokens.  Raises ModelError if
    ``llguidance`` is missing, or if the vocabulary has no end token.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int | None = None) -> None:
        with required("llguidance", "constraining text to a JSON schema or a grammar"):
            from llguidance import LLTokenizer
            from llguidance import TokenizerWrapper as Wrapper
        if not isinstance(tokenizer, Tokenizer):
            raise ParameterError(
                f"tokenizer must be a Tokenizer, got {short_repr(tokenizer)}",
                got=tokenizer,
                remedy="pass model.tokenizer",
            )
        if not tokenizer.ends:
            raise NoEndTokenError("the vocabulary has no end token, so a text with a grammar could not end")
        self.n_vocab = n_vocab or tokenizer.n_vocab
        self._texts = tokenizer
        self._tokenizer: LLTokenizer = LLTokenizer(
            Wrapper(_TokenizerView(tokenizer)), n_vocab=self.n_vocab, eos_token=sorted(tokenizer.ends)
        )

    def json_schema(self, schema: Mapping[str, Any] | str | None = None, *, lenient: bool = False) -> GrammarConstraint:
        """The constraint to JSON that matches a schema; None: to any JSON object.

        ``lenient``: ignore keys and formats that are not supported, and take ``oneOf`` for ``anyOf``, so that the JSON
        may not match all of the schema; :attr:`GrammarConstraint.warnings` names them.

        Raises ParameterError for a schema that is not valid, exceeds :mod:`.grammar_limits`, or uses keys that are not
        supported.
        """
        if schema is None:
            schema = {"type": "object"}
        from llguidance import LLMatcher

        found = read_schema(schema)
        options: Any = {"whitespace_pattern": SPACES, **(LENIENT if lenient else {})}
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(found, allow_nan=False), overrides=options)
        except ValueError as error:
            raise ParameterError(f"the JSON schema is not valid: {error}", got=schema) from error
        return self._constraint(grammar, "JSON schema", schema)

    def regex(self, pattern: str) -> GrammarConstraint:
        """The constraint to text that a regular expression matches as a whole.  Raises ParameterError."""
        check_pattern(pattern)
        from llguidance import LLMatcher

        return self._constraint(LLMatcher.grammar_from_regex(pattern), "regular expression", pattern)

    def lark(self, grammar: str) -> GrammarConstraint:
        """The constraint to a grammar in the notation of Lark, with a rule ``start``.  Raises ParameterError."""
        check_grammar(grammar)
        return self._of_lark(grammar, "grammar", grammar)

    def answer(self, grammar: str) -> GrammarConstraint:
        """The constraint to the grammar of an answer, see :meth:`.PreparedChat.grammar`, which has checked its schemas.

        Raises ParameterError.
        """
        return self._of_lark(grammar, "JSON schema", grammar)

    def gbnf(self, grammar: str) -> GrammarConstraint:
        """The constraint to a grammar in llama.cpp's notation (:mod:`.gbnf`), with a rule ``root``.

        One that begins with ``%llguidance`` is in the notation of Lark, as in llama.cpp.  Raises ParameterError.
        """
        check_grammar(grammar)
        if grammar.lstrip().startswith("%llguidance"):
            return self.lark(grammar)
        return self._of_lark(to_lark(grammar, self._token_of), "grammar", grammar)

    def _token_of(self, text: str) -> int | None:
        """The token that a text is as a whole."""
        found = self._texts.encode(text, parse_special=True, begins=False)
        return found[0] if len(found) == 1 else None

    def _of_lark(self, grammar: str, what: str, got: str) -> GrammarConstraint:
        from llguidance import LLMatcher

        return self._constraint(LLMatcher.grammar_from_lark(grammar + UNFORCED), what, got)

    def _constraint(self, grammar: str, what: str, got: Any) -> GrammarConstraint:
        from llguidance import LLMatcher, LLParserLimits

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        if not matcher.is_error():
            matcher.compute_bitmask()  # so that a grammar without texts is refused now, not at the first token
        if matcher.is_error():
            raise ParameterError(f"the {what} is not valid: {_in_words(matcher.get_error())}", got=got)
        return GrammarConstraint(matcher, self.n_vocab)


class GrammarConstraint:
    """A :class:`~ggplug_models.sampling.Constraint` that allows the tokens of a grammar, for one sequence."""

    def __init__(self, matcher: LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab

    def allowed(self) -> npt.NDArray[np.bool_]:
        """The tokens that may come next, booleans ``(n_vocab,)``.  Raises ParameterError for too complex a grammar."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Advances the grammar by a token.  Raises ParameterError for a token that was not allowed."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._check()

    def begin(self) -> None:
        """Starts a new text."""
        self._matcher.reset()

    def __deepcopy__(self, memo: object) -> GrammarConstraint:
        """A constraint that continues from the same place of the text, so that samplers can be copied."""
        return GrammarConstraint(self._matcher.deep_copy(), self._n_vocab)

    @property
    def warnings(self) -> list[str]:
        """What of a schema is ignored, because it is not supported."""
        return [_in_words(warning) for warning in self._matcher.get_grammar_warnings()]

    @property
    def complete(self) -> bool:
        """Whether the text so far matches the whole grammar."""
        return bool(self._matcher.is_accepting() or self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ParameterError(f"the grammar cannot be applied to this text: {_in_words(self._matcher.get_error())}")


def _in_words(error: str) -> str:
    """An error of the library in one line, in words of the grammar, not of the library."""
    # The library prints a pattern before its error, and its own form of the grammar and its state after other errors.
    error = f"\n{error}".rpartition("\nerror: ")[2].lstrip("\n").partition("\n")[0][:LONGEST_ERROR]
    for pattern, words in _WORDS:
        error = re.sub(pattern, words, error)
    return error.strip()


class _TokenizerView:
    """A tokenizer with the interface that ``llguidance`` requires."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.ends) if tokenizer.eos is None else tokenizer.eos
        self.bos_token_id = tokenizer.bos
        # The library marks special tokens with 0xFF, which does not occur in UTF-8.
        pieces = map(tokenizer.piece, range(tokenizer.n_vocab))
        self.tokens = [MARK + p if tokenizer.is_control(n) else p.replace(MARK, b"") for n, p in enumerate(pieces)]
        self.special_token_ids = [token for token in range(tokenizer.n_vocab) if tokenizer.is_control(token)]

    def __call__(self, text: str | bytes) -> list[int]:
        # The library needs the tokens of exactly these bytes, without a space before them.
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"), begins=False)
