"""Greps the includes of src/, cli/ and bench/ and fails where a dependency points the wrong way.

base <- {contract, reference, cpu, cuda, kv, files} <- dispatch <- {capi, cli, bench, python}
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAY_INCLUDE = {
    "base": {"base"},
    "contract": {"base", "contract"},
    "reference": {"base", "reference"},
    "cpu": {"base", "cpu"},
    "kv": {"base", "kv"},
    "files": {"base", "files"},
    "cuda": {"base", "cuda"},
    "capi": {"base", "capi"},
    "dispatch": {"base", "contract", "cpu", "cuda", "kv", "dispatch"},
}
PTX = ROOT / "src" / "cuda" / "ptx"
SOURCE = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def faults():
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in SOURCE:
            continue
        room = path.relative_to(ROOT / "src").parts[0]
        allowed = MAY_INCLUDE.get(room)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            match = INCLUDE.match(line)
            if match and allowed is not None:
                target = match.group(1).split("/")[0]
                if (ROOT / "src" / target).is_dir() and target not in allowed:
                    yield f"{where}: {room} must not include {target} ({match.group(1)})"
            if PTX not in path.parents and re.search(r"\basm\b\s*(volatile)?\s*\(", line):
                yield f"{where}: asm belongs in src/cuda/ptx"


found = list(faults())
print("\n".join(found) if found else "dependencies point one way")
sys.exit(1 if found else 0)
