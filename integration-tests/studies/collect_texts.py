"""Collect texts of eight kinds for the studies: manuals, essays, dictionaries, source code, quotations.

They come from packages of Debian 12 (``apt-get download``, nothing is installed) and from Python's own
standard library; none of them is committed. Six texts a kind, about 2,500 tokens each.

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


def spread(files: Iterable[Path]) -> list[str]:
    """EACH texts of LENGTH characters from the longest files, from the middle of each."""
    texts = []
    for file in files:
        try:
            raw = file.read_bytes()
            texts.append(plain((gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")))
        except UnicodeDecodeError:
            continue
    longest = sorted((text for text in texts if len(text) >= LENGTH), key=len, reverse=True)[:EACH]
    if not longest:
        return []
    cuts = []
    for number in range(EACH):
        text = longest[number % len(longest)]
        share = (1 + number // len(longest)) / (2 + (EACH - 1) // len(longest))
        start = text.find("\n", int(share * (len(text) - LENGTH)))
        cuts.append(text[max(start, 0) :][:LENGTH].strip())
    return cuts


def packaged(package: str, pattern: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        return spread(sorted(file for file in Path(folder).glob(pattern) if file.is_file()))


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_paths()["stdlib"])
    found = {kind: packaged(*source) for kind, source in KINDS.items()}
    found["python"] = spread(sorted(library.glob("*.py")))
    for kind, texts in found.items():
        print(f"{kind}: {len(texts)} texts")
        for number, text in enumerate(texts):
            (out / f"{kind}-{number}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
