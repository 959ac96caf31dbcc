"""Makes the catalogue from the rule list and the records: the site, the C++ source that embeds it, and the sources of
the tests that compile every example. Fails, with every reason, where a rule has no complete record.

    build.py --rules rules.json --out FOLDER
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

import embed
import examples
import records
import rule_source
import site_pages


def made_at() -> str:
    """The time of what the catalogue was made from: SOURCE_DATE_EPOCH, the last commit, or the newest rule file."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        command = ["git", "-C", str(rule_source.ROOT), "log", "-1", "--format=%ct"]
        try:
            seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            seconds = max(path.stat().st_mtime for path in rule_source.ROOT.glob("src/*/*.h"))
    return datetime.datetime.fromtimestamp(float(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(path: pathlib.Path, text: str) -> None:
    """Written only where it differs, so that nothing is built again for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        told = records.tell(records.load_rules(options.rules))
    except (records.RecordError, LookupError) as error:
        print(f"error: the catalogue is not complete\n{error}", file=sys.stderr)
        return 1
    at = made_at()
    public = [records.public_record(one, at) for one in told]
    matching = {"datasetVersion": at, "rules": [records.matching_entry(one) for one in told]}
    files = site_pages.site(told, public, matching, at)
    write(options.out / "site_files.cc", embed.cpp_source(files))
    write(options.out / "examples.json", json_text(examples.python_examples(told)))
    for name, source in examples.cpp_sources(told).items():
        write(options.out / name, source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
