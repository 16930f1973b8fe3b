"""What the core says of packages that are not installed is what they say of themselves."""

import re
from pathlib import Path

from vqx import known
from vqx.registry import registry
from write_known import FILE, found, written


def test_the_list_is_that_of_the_packages() -> None:
    assert FILE.read_text() == written(), "run python integration-tests/write_known.py"
    assert [one._asdict() for one in known.known()] == found()


def test_every_package_says_what_it_is() -> None:
    assert all(re.fullmatch(r"[A-Za-z].{15,90}", one.summary) for one in known.known())


def test_every_method_here_is_known_with_its_package() -> None:
    brings = {method: one.package for one in known.known() for method in one.methods}
    here = {one.name: one.distribution for one in registry.installed() if Path(one.distribution).name}
    assert here
    assert here.items() <= brings.items()
