"""Makes the prompt sets from their recipes and this machine's standard library, or checks the ones on disk.

    python benches/prompts/make_prompts.py --check    # compare the JSONL files with what the recipes give
    python benches/prompts/make_prompts.py            # write them; refuses where an excerpt differs from the pinned one
    python benches/prompts/make_prompts.py --pin      # write them and pin this Python's excerpts

Exit status: 0 all the same, 1 a prompt on disk is not what its recipe gives, 3 nothing wrong but some prompts could
not be compared, because this Python's library has other text than the pinned one (each such excerpt is named).
"""

import argparse
import importlib
import json
import platform
import sys
from pathlib import Path

import sources

HERE = Path(__file__).resolve().parent
PINS = HERE / "sources.json"
SETS = ("code_edit", "agent", "long_qa", "chat", "docstring_code")
SAME, DIFFERENT, NOT_COMPARABLE = 0, 1, 3


def recipes(set_name):
    """Return the recipes of one set, in the order in which they are written."""
    return importlib.import_module(f"recipes.{set_name}").RECIPES


def line_of(prompt):
    """Return a prompt as its line in the JSONL file."""
    return json.dumps(prompt, ensure_ascii=False) + "\n"


def changed_excerpts(addresses, pinned):
    """Return what differs between this Python's excerpts and the pinned hashes, a sentence by address."""
    changed = {}
    for address in addresses:
        try:
            found = sources.digest(sources.excerpt(address))
        except sources.SourceMissingError as missing:
            changed[address] = str(missing)
            continue
        expected = pinned.get(address)
        if found != expected:
            changed[address] = (
                f"found sha256 {found[:12]}, expected {expected[:12] if expected else 'none (not pinned)'}"
            )
    return changed


def all_addresses():
    return sorted({address for name in SETS for recipe in recipes(name) for address in recipe.addresses()})


def report_changes(changed, pinned_python):
    for address, why in changed.items():
        print(f"{sources.title(address)}: {why}", file=sys.stderr)
    if changed:
        print(
            f"{len(changed)} excerpts of Python {platform.python_version()} differ from those of {pinned_python}",
            file=sys.stderr,
        )


def check(folder, pins):
    """Compare every prompt whose excerpts are the pinned ones; return the exit status."""
    changed = changed_excerpts(all_addresses(), pins["excerpts"])
    report_changes(changed, pins["python"])
    wrong, compared, skipped = 0, 0, 0
    for name in SETS:
        on_disk = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        expected = recipes(name)
        if len(on_disk) != len(expected):
            print(f"{name}.jsonl: found {len(on_disk)} prompts, expected {len(expected)}", file=sys.stderr)
            wrong += 1
        for line, recipe in zip(on_disk, expected, strict=False):
            if changed.keys() & set(recipe.addresses()):
                skipped += 1
            elif line != line_of(recipe.prompt(name, pins["python"])):
                print(f"{name}.jsonl: {recipe.id} is not what its recipe gives", file=sys.stderr)
                wrong += 1
            else:
                compared += 1
    print(f"{compared} prompts as their recipes give them, {wrong} not, {skipped} not comparable on this Python")
    if wrong:
        return DIFFERENT
    return NOT_COMPARABLE if skipped else SAME


def write(folder, python):
    for name in SETS:
        lines = [line_of(recipe.prompt(name, python)) for recipe in recipes(name)]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}.jsonl: {len(lines)} prompts, {sum(len(line.encode()) for line in lines)} bytes")


def write_pins():
    """Pin this Python's excerpts; return why not where one is missing."""
    try:
        excerpts = {address: sources.digest(sources.excerpt(address)) for address in all_addresses()}
    except sources.SourceMissingError as missing:
        return str(missing)
    pins = {"python": platform.python_version(), "excerpts": excerpts}
    PINS.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")
    return None


def main(arguments=None):
    parser = argparse.ArgumentParser(description="make or check the prompt sets")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--check", action="store_true", help="compare the files on disk, write nothing")
    doing.add_argument("--pin", action="store_true", help="take this Python's excerpts as the pinned ones")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the JSONL files lie (default: beside this)")
    options = parser.parse_args(arguments)
    if options.pin:
        missing = write_pins()
        if missing:
            print(f"nothing written: {missing}", file=sys.stderr)
            return NOT_COMPARABLE
    pins = json.loads(PINS.read_text(encoding="utf-8"))
    if options.check:
        return check(options.folder, pins)
    changed = changed_excerpts(all_addresses(), pins["excerpts"])
    report_changes(changed, pins["python"])
    if changed:
        print("nothing written; use --pin to take this Python's text as the source", file=sys.stderr)
        return NOT_COMPARABLE
    write(options.folder, pins["python"])
    return SAME


if __name__ == "__main__":
    sys.exit(main())
