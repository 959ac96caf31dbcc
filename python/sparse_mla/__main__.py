"""`python -m sparse_mla` is the command line `sparse-mla`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command_line() -> str | None:
    """The path of the command line: the package's own copy, the build tree's, or one on PATH."""
    package = Path(__file__).parent
    for candidate in (package / "bin" / "sparse-mla", _build_tree(package) / "sparse-mla"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return shutil.which("sparse-mla")


def _build_tree(package: Path) -> Path:
    """Where the package lies in build/python/sparse_mla, the command line lies in build."""
    return package.parent.parent


def main() -> int:
    program = command_line()
    if program is None:
        print("sparse_mla: this installation has no command line, and there is no sparse-mla on PATH", file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(program, ["sparse-mla", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
