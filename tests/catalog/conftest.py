"""Tests of the catalogue as people meet it: the command line, the site and the server of the build tree."""

import json

import pytest

from catalog_support import PROGRAM, sparse_mla


@pytest.fixture(scope="session")
def program():
    assert PROGRAM.exists(), f"{PROGRAM} is not there: cmake --build build --target sparse_mla_cli"
    return PROGRAM


@pytest.fixture(scope="session")
def site(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = sparse_mla("catalog", "build", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def answers(site):
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((site / "api/errors").iterdir()) if path.suffix == ""]


@pytest.fixture(scope="session")
def records(answers):
    return [answer["record"] for answer in answers]
