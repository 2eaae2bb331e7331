"""What the command costs before it does anything: import time, memory, `--help`.

    make bench-startup

Ratios are to `python -c pass` on the same machine and in the same minute, because seconds say more about the machine. Each
figure is the best of several rounds, taken in turns, so that a busy moment hits all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 9
PEAK = """
import resource, sys
unit = 1 if sys.platform == "darwin" else 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""
CASES = {
    "python": ["-c", "pass"],
    "import": ["-c", "import ledger, ledger.home, ledger.cli.app"],
    "help": ["-m", "ledger.cli", "--help"],
}


def seconds(arguments: list[str]) -> float:
    """Wall seconds of one Python process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def peak_bytes(arguments: list[str]) -> int:
    """The most memory that a process of one `-c` program held."""
    program = f"{arguments[1]}\n{PEAK}"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(answer.stdout.split()[-1])


def core_bytes() -> dict[str, int]:
    """Bytes on disk of each distribution that a core installation has, posttrain's own packages among them.

    Counted from the installed files of the distributions that posttrain requires without an extra, their own requirements
    included; compiled Python files do not count.
    """
    from importlib.metadata import distribution

    sizes: dict[str, int] = {}
    todo = ["posttrain"]
    while todo:
        name = todo.pop()
        found = distribution(name)
        if found.name in sizes:
            continue
        sizes[found.name] = sum(
            path.stat().st_size
            for path in (Path(str(found.locate_file(file))) for file in found.files or [])
            if path.suffix != ".pyc" and path.is_file()
        )
        todo += core_requirements(found.requires or [])
    root = Path(__file__).resolve().parents[2]
    packages = [path for name in ("ledger", "executors", "verifiers", "assets") for path in (root / name).rglob("*")]
    sizes["posttrain"] = sum(path.stat().st_size for path in packages if path.is_file() and path.suffix != ".pyc")
    return sizes


def core_requirements(requirements: list[str]) -> list[str]:
    """The names of the requirements that hold on this machine without an extra."""
    from packaging.requirements import Requirement

    parsed = [Requirement(line) for line in requirements]
    return [line.name for line in parsed if line.marker is None or line.marker.evaluate({"extra": ""})]


def main() -> None:
    best = {name: float("inf") for name in CASES}
    for _ in range(ROUNDS):
        for name, arguments in CASES.items():
            best[name] = min(best[name], seconds(arguments))
    floor, loaded = peak_bytes(CASES["python"]), peak_bytes(CASES["import"])
    installed = core_bytes()
    figures = {
        "python_s": round(best["python"], 4),
        "import_s": round(best["import"] - best["python"], 4),
        "help_s": round(best["help"], 4),
        "python_peak_bytes": floor,
        "import_peak_bytes": loaded,
        "core_installed_bytes": sum(installed.values()),
    }
    ratios = {
        "help/python": round(best["help"] / best["python"], 2),
        "import/python": round(best["import"] / best["python"], 2),
        "import memory/python memory": round(loaded / floor, 2),
    }
    for name, figure in figures.items():
        print(f"{name:22} {figure:>14,}")
    for name, size in sorted(installed.items(), key=lambda item: -item[1])[:5]:
        print(f"  {name:20} {size:>14,} bytes on disk")
    print(json.dumps({"bench": "startup", "ratios": ratios, "figures": figures}))


if __name__ == "__main__":
    main()
