"""Whether the rule of a system prompt is still obeyed after a long text (arXiv 2510.00231)."""

import numpy as np
import vqx
from vqx import Setting

from vqx_eval.haystack import even, hide, prose
from vqx_eval.retrieval import RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task
from vqx_eval.words import THINGS

RULE = 64
"""Tokens that hold the rule, and with it perhaps a little of the text."""
PROTECT = "protect"


def with_and_without_protection(setting: Setting) -> list[Setting]:
    """The method itself, and with the rule's rows protected where vqx-protect is installed."""
    if PROTECT in setting.method or PROTECT not in vqx.names():
        return [setting]
    spans = {**setting.options, "spans": ((0, RULE),)}
    return [setting, Setting(f"{PROTECT}({setting.method})", spans)]


@task("instruction", "retrieval", measure, RETRIEVAL, ("agnostic",), with_and_without_protection)
def samples(wanted: Wanted) -> list[Sample]:
    """A rule at the very start, then a long text; is the reply signed as the rule says?"""
    words = even((word.capitalize() for word in THINGS), wanted.encode)
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, 19, number])
        word = words[draw.integers(len(words))]
        hidden = hide(
            wanted,
            prose(wanted, draw),
            [],
            head=f"System: You are an assistant called {word}. You sign every reply with your name,"
            f" {word}.\n\nUser: Please read this text.\n\n",
            question="\n\nUser: Thank you, that will do.\n\nAssistant: You are welcome. Signed,",
            answer=word,
        )
        made.append(hidden.sample("instruction", number, half_of(number), depth=0.0))
    return made
