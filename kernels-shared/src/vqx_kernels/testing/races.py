"""Data races between the threads of a block, by ThreadSanitizer, to which the fibers are announced."""

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from vqx_kernels.testing import toolchain
from vqx_kernels.testing.emulator import KERNEL, Conditions, Launch, options_of, translation
from vqx_kernels.testing.toolchain import DRIVER, HERE, QUIET, Refused

WATCHED = ("-g", "-O1", "-std=c++20", "-nostdlib++", "-fno-sanitize=undefined")


def found(target: str, launch: Launch) -> list[str]:
    """What two threads do at once, in words."""
    program = _program(translation(target, launch.name, launch.text))
    arrays = [*launch.arrays, *launch.outputs]
    options = options_of(target, Conditions())
    head = [len(arrays), *launch.grid, *launch.threadgroup]
    head += [getattr(options, name) for name, *_ in options._fields_]
    with tempfile.NamedTemporaryFile() as case:
        case.write(np.array(head, np.uint32).tobytes())
        for _, array in arrays:
            case.write(np.uint64(array.nbytes).tobytes() + np.ascontiguousarray(array).tobytes())
        case.flush()
        settings = {**os.environ, "TSAN_OPTIONS": "exitcode=0 history_size=4"}
        done = subprocess.run([program, case.name], capture_output=True, text=True, env=settings)
    said = set()
    for report in done.stderr.split("==================")[1:]:
        if "WARNING: ThreadSanitizer" in report:
            sides = re.split(r"\n  Previous |\n  Location", report)[:2]
            places = [re.findall(r"kernel\.metal:(\d+)", side) for side in sides]
            said.add(
                "race: " + " and ".join(f"line {place[0]}" if place else "the engine" for place in places)
            )
    if done.returncode not in (0, 1) or "EMU" in done.stderr:
        raise Refused(f"the watched run ended with {done.returncode}: {done.stderr[-600:]}")
    return sorted(said)


def _program(unit: str) -> str:
    """The kernel and the engine in one watched program."""
    sources = [(HERE / name).read_text() for name in ("engine.cpp", "runner.cpp")]
    key = hashlib.sha256("\0".join((unit, *sources)).encode()).hexdigest()[:20]
    built = toolchain.folder() / f"races-{key}"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=toolchain.folder()) as scratch:
            objects = []
            text = Path(scratch, "kernel.cpp")
            text.write_text(unit)
            # the engine itself is not watched: fibers change places in it
            for source, flags in (
                (text, (*KERNEL, *toolchain.includes(), "-fsanitize=thread")),
                (HERE / "engine.cpp", ("-DMSL_TSAN", "-fno-sanitize=thread")),
                (HERE / "runner.cpp", ("-fno-sanitize=thread",)),
            ):
                objects.append(str(Path(scratch, source.stem + ".o")))
                _run("-c", *WATCHED, *flags, "-o", objects[-1], str(source))
            fresh = Path(scratch, "program")
            _run("-fsanitize=thread", "-nostdlib++", "-o", str(fresh), *objects)
            os.replace(fresh, built)
    return str(built)


def _run(*arguments: str) -> None:
    done = subprocess.run([*DRIVER, "c++", *QUIET, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"no build with ThreadSanitizer: {done.stderr[-2000:]}")
