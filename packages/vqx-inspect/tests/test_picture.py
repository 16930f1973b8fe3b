"""The text of a picture, laid out."""

from itertools import groupby

from vqx_inspect.picture import COLUMNS, _laid_out


def test_lines_break_between_words_and_lose_nothing_but_the_space_there() -> None:
    texts = ["The", " boat", "man", *[" names", " tw", "el", "ve", ",", " is"] * 9, ".\n\n", "End", "x" * 250]
    words = [*_laid_out(texts)]
    lines = ["".join(word.text for word in line) for _, line in groupby(words, lambda word: word.line)]
    assert all(len(line) <= COLUMNS for line in lines)
    whole, end = "".join(texts).split("\n\n")
    assert " ".join(lines[: words[-1].line - 3]) == whole
    assert "".join(lines[-3:]) == end
    assert [word.token for word in words] == sorted(word.token for word in words)
