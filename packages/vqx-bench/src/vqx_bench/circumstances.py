"""The machine and the versions that figures were taken with."""

import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx

ASKED = ("vqx", "vqx-kernels", "mlx", "mlx-cuda-13", "mlx-lm", "numpy")


def circumstances() -> dict[str, object]:
    """Date, machine, versions."""
    device = mx.device_info()
    name = device.get("device_name") or device.get("name") or _processor()
    return {
        "date": date.today().isoformat(),
        "machine": f"{name}, {platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": ", ".join(f"{name} {found}" for name in ASKED if (found := _version(name))),
        "python": platform.python_version(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source" if name == "vqx" else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
