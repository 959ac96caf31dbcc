"""Tests of the Python package, against the build tree's copy (build/python, or SPARSE_MLA_BUILD)."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPARSE_MLA_BUILD", ROOT / "build"))
PACKAGE_PATH = BUILD / "python"

# Child processes find the package and the helpers of the tests too.
sys.path[:0] = [str(PACKAGE_PATH), str(pathlib.Path(__file__).parent)]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def package_path():
    return PACKAGE_PATH


@pytest.fixture(scope="session")
def root():
    return ROOT
