"""Where messages and texts stand, with a tokenizer of one token a character."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from vqx_protect import spans_of_roles, spans_of_text


class Letters:
    """A tokenizer whose chat template writes ``<role:content>``, one token a character."""

    def __init__(self, *, hides: bool = False, alternates: bool = False) -> None:
        self.hides, self.alternates = hides, alternates

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in ("^" if add_special_tokens else "") + text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(
        self, messages: list[Mapping[str, Any]], *, tokenize: bool, add_generation_prompt: bool = False
    ) -> str:
        if self.alternates and messages[-1]["role"] == "system":
            raise RuntimeError("a user must follow")
        written = "".join(f"<{each['role']}:{each['content']}>" for each in messages)
        if self.hides and len(messages) > 2:
            written = written.replace("thought", "")
        return "^" + written + ("<assistant:" if add_generation_prompt else "")


MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "tool", "content": "be brief"},
]
WHOLE = "^<system:be brief><user:hello><tool:be brief><assistant:"


def written(spans: tuple[tuple[int, int], ...]) -> list[str]:
    return [WHOLE[first:end] for first, end in spans]


def test_messages_are_found_with_the_templates_marks() -> None:
    assert written(spans_of_roles(Letters(), MESSAGES, {"system"})) == ["^<system:be brief>"]
    assert written(spans_of_roles(Letters(), MESSAGES, ["tool", "user"])) == [
        "<user:hello>",
        "<tool:be brief>",
    ]


def test_a_role_that_no_message_has_is_refused() -> None:
    with pytest.raises(ValueError, match="the role 'robot'; there are: 'system', 'tool', 'user'"):
        spans_of_roles(Letters(), MESSAGES, {"robot"})


def test_a_template_that_rewrites_earlier_messages_is_refused() -> None:
    thinking = [*MESSAGES[:1], {"role": "assistant", "content": "thought"}, *MESSAGES[1:]]
    with pytest.raises(ValueError, match=r"where message 2 stands: it writes it otherwise .* spans_of_text"):
        spans_of_roles(Letters(hides=True), thinking, {"user"})


def test_a_template_that_refuses_part_of_a_conversation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"message 1 stands: it refuses .*\(a user must follow\)"):
        spans_of_roles(Letters(alternates=True), MESSAGES, {"user"})


def test_a_text_is_found_in_the_fewest_tokens() -> None:
    tokens = Letters().encode(WHOLE, add_special_tokens=False)
    assert written(spans_of_text(Letters(), tokens, "hello")) == ["hello"]
    assert spans_of_text(Letters(), tokens, WHOLE) == ((0, len(WHOLE)),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("be brief", "'be brief' stands more than once"),
        ("be long", "'be long' does not stand in the"),
        ("", "'' does not stand"),
    ],
)
def test_a_text_that_is_missing_or_ambiguous_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spans_of_text(Letters(), Letters().encode(WHOLE), text)


def test_a_text_that_overlaps_itself_is_ambiguous() -> None:
    with pytest.raises(ValueError, match="more than once"):
        spans_of_text(Letters(), Letters().encode("xaaax"), "aa")
