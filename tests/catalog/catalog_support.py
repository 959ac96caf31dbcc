"""Where the build tree is, and its command line."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPARSE_MLA_BUILD", ROOT / "build"))
PROGRAM = BUILD / "sparse-mla"


def sparse_mla(*arguments, text=None):
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=60)
