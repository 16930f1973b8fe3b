"""Collect texts of eight kinds for the studies: manuals, essays, dictionaries, source code, quotations.

They come from packages of Debian 12 (``apt-get download``, nothing is installed) and from Python's own
standard library; none of them is committed. Two folders, ``tune`` for choosing and ``report`` for reporting:
six texts a kind in each, about 2,500 tokens a text, and no stretch of text in both.

    python integration-tests/studies/collect_texts.py texts/
"""

import gzip
import html
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

EACH, LENGTH = 6, 12_000  # texts a kind, characters a text
KINDS = {  # kind: package, files within it
    "handbook": ("debian-handbook", "usr/share/doc/debian-handbook/html/en-US/*.html"),
    "essay": ("anarchism", "usr/share/doc/anarchism/html/*.html"),
    "jargon": ("jargon-text", "usr/share/doc/jargon-text/*"),
    "perl": ("perl-doc", "usr/share/perl/*/pod/*.pod"),
    "standards": ("gnu-standards", "usr/share/doc/gnu-standards/*"),
    "reference": ("developers-reference", "usr/share/developers-reference/*.html"),
    "quotations": ("fortunes", "usr/share/games/fortunes/*"),
}


def plain(raw: str) -> str:
    """Text without mark-up, blank lines in a row and a page's navigation."""
    raw = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", " ", raw)
    text = html.unescape(re.sub(r"<[^<>]{1,500}>", " ", raw)).replace("\x0c", "\n")
    return re.sub(r"[ \t]+", " ", re.sub(r"\n\s*\n\s*", "\n\n", text)).strip()


def spread(files: Iterable[Path]) -> dict[str, list[str]]:
    """EACH texts of LENGTH characters for each folder: the longest files, from the middle of each.

    Where there are too few files, other stretches of them, as far as can be from what is taken.
    """
    texts = []
    for file in files:
        try:
            raw = file.read_bytes()
            texts.append(plain((gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")))
        except UnicodeDecodeError:
            continue
    long = sorted({text for text in texts if len(text) >= LENGTH}, key=lambda text: (-len(text), text))
    if not long:
        return {}
    longest, others = long[:EACH], long[EACH:]
    places: list[tuple[str, int]] = []
    for number in range(EACH):
        text = longest[number % len(longest)]
        share = (1 + number // len(longest)) / (2 + (EACH - 1) // len(longest))
        places.append((text, int(share * (len(text) - LENGTH))))
    tune = [cut(*place) for place in places]
    known = set[str]().union(*map(runs, tune))
    report: list[str] = []
    while len(report) < EACH:
        if others:
            text = others.pop(0)
            place = (len(text) - LENGTH) // 2
        else:
            distance, text, place = max(farthest(text, places) for text in long)
            if distance < 2 * LENGTH:
                raise ValueError("too little text for two folders")
        places.append((text, place))
        if known.isdisjoint(runs(cut(text, place))):
            report.append(cut(text, place))
    return {"tune": tune, "report": report}


def cut(text: str, place: int) -> str:
    """LENGTH characters from the next line on."""
    return text[max(text.find("\n", place), 0) :][:LENGTH].strip()


def runs(text: str) -> set[str]:
    """Every twelve words in a row: what two texts share if one quotes the other."""
    words = text.split()
    return {" ".join(words[at : at + 12]) for at in range(len(words) - 11)}


def farthest(text: str, places: list[tuple[str, int]]) -> tuple[int, str, int]:
    """The place in a text that is farthest from those taken, with its distance."""
    taken = [place for other, place in places if other == text] or [-2 * LENGTH]
    grid = range(0, len(text) - LENGTH + 1, LENGTH // 4)
    return max((min(abs(at - place) for place in taken), text, at) for at in grid)


def packaged(package: str, pattern: str) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        return spread(sorted(file for file in Path(folder).glob(pattern) if file.is_file()))


def main() -> None:
    out = Path(sys.argv[1])
    library = Path(sysconfig.get_paths()["stdlib"])
    found = {kind: packaged(*source) for kind, source in KINDS.items()}
    found["python"] = spread(sorted(library.glob("*.py")))
    for kind, folders in found.items():
        for folder, texts in folders.items():
            print(f"{folder}/{kind}: {len(texts)} texts")
            (out / folder).mkdir(parents=True, exist_ok=True)
            for number, text in enumerate(texts):
                (out / folder / f"{kind}-{number}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
