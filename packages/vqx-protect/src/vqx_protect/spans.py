"""Where messages and texts stand in a prompt: exact ranges of tokens, or a refusal in words."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

Spans = tuple[tuple[int, int], ...]


def spans_of_roles(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], roles: Collection[str], **template: Any
) -> Spans:
    """The tokens of all messages of these roles, as the chat template writes them.

    A message's span has the template's own marks around it, and before the first message whatever the
    template puts there. Give ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)`` as
    the prompt.

    Args:
        tokenizer: of mlx-lm, or of transformers.
        messages: the conversation, each with a ``role``.
        roles: for example ``{"system", "tool"}``.
        template: what else the template is given, for example ``tools``.

    Raises:
        ValueError: a role that no message has, a template that writes a message otherwise once others
            follow, so that its tokens cannot be told.
    """
    missing = sorted(set(roles) - {message["role"] for message in messages})
    if missing:
        raise ValueError(f"no message has the role {missing[0]!r}; there are: {_roles(messages)}")
    whole = _written(tokenizer, messages, {**template, "add_generation_prompt": True})
    spans, start = [], 0
    for number, message in enumerate(messages, 1):
        try:
            part = _written(tokenizer, messages[:number], template)
        except Exception as error:  # a template raises whatever it likes
            raise ValueError(_untold(number, f"it refuses the conversation up to there ({error})")) from error
        if whole[: len(part)] != part:
            raise ValueError(_untold(number, "it writes it otherwise once other messages follow"))
        if message["role"] in roles and len(part) > start:
            spans.append((start, len(part)))
        start = len(part)
    return tuple(spans)


def spans_of_text(tokenizer: Any, tokens: Sequence[int], text: str) -> Spans:
    """The fewest tokens that hold a text which stands in the prompt exactly once.

    Raises:
        ValueError: a text that is not there, or there more than once.
    """
    whole = tokenizer.decode(list(tokens))
    at = whole.find(text) if text else -1
    if at < 0:
        raise ValueError(f"{text!r} does not stand in the {len(tokens)} tokens given")
    if whole.find(text, at + 1) >= 0:
        raise ValueError(f"{text!r} stands more than once in the {len(tokens)} tokens given; give more of it")
    end = _least(len(tokens), lambda end: text in tokenizer.decode(list(tokens[:end])))
    back = _least(end, lambda back: text in tokenizer.decode(list(tokens[end - back : end])))
    return ((end - back, end),)


def _least(most: int, holds: Any) -> int:
    """The least number up to ``most`` for which ``holds``, which holds from there on."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _written(tokenizer: Any, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> list[int]:
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, **template)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _roles(messages: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({repr(message["role"]) for message in messages})) or "no messages"


def _untold(number: int, why: str) -> str:
    return (
        f"the chat template does not say where message {number} stands: {why};"
        " use spans_of_text with its content"
    )
