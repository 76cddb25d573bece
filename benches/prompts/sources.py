"""Reads the excerpts that prompts are made of: the standard library's text and this repository's licence.

An excerpt has an address, written inside a recipe between double angle brackets:

- ``bisect.py``: a whole file of the standard library;
- ``bisect.py:insort_right``: the source of one function or class (dots reach into classes);
- ``difflib.py:Differ.__doc__`` and ``heapq.py:__doc__``: a docstring, indentation removed;
- ``topic:with``: a chapter of the Python language reference, as ``help("with")`` prints it;
- ``repo:LICENSE``: a file of this repository.

``[first:last]`` after an address takes only those lines, counted from 0 as Python slices are.
"""

import ast
import functools
import hashlib
import re
import sysconfig
import textwrap
from pathlib import Path

LINES = re.compile(r"\[(\d+):(\d+)\]$")
REPOSITORY = Path(__file__).resolve().parents[2]


class SourceMissingError(LookupError):
    """An excerpt does not exist in this Python's standard library."""


@functools.cache
def excerpt(address):
    """Return the text at ``address`` without trailing blank lines; raise SourceMissingError where there is none."""
    lines = LINES.search(address)
    if lines:
        whole = excerpt(address[: lines.start()]).splitlines()
        return "\n".join(whole[int(lines[1]) : int(lines[2])]).rstrip()
    place, _, name = address.partition(":")
    if place == "topic":
        text = _topic(name)
    elif place == "repo":
        text = _file(REPOSITORY / name, address)
    else:
        text = _file(Path(sysconfig.get_paths()["stdlib"]) / place, address)
        if name:
            text = _part(text, name, address)
    return text.rstrip()


def digest(text):
    """Return the sha256 of an excerpt, the value that ``sources.json`` pins."""
    return hashlib.sha256(text.encode()).hexdigest()


def licence(address):
    """Return the SPDX name of the licence that the text at ``address`` comes under."""
    return "Apache-2.0" if address.startswith("repo:") else "PSF-2.0"


def title(address):
    """Return how a prompt's ``source`` names the text at ``address``."""
    place, _, name = address.partition(":")
    if place == "topic":
        return f"language reference, '{name}'"
    if place == "repo":
        return f"this repository's {name}"
    return f"Lib/{address}"


def _topic(name):
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise SourceMissingError(f"found no pydoc_data.topics, expected topic '{name}' there") from None
    if name not in topics:
        raise SourceMissingError(f"found no language reference topic '{name}', expected it in pydoc_data.topics")
    # Paragraphs only: trailing spaces are an accident of the export, not of the text.
    return "\n".join(line.rstrip() for line in topics[name].strip().splitlines())


def _file(path, address):
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SourceMissingError(
            f"found no file for '{address}', expected one in this Python's standard library"
        ) from None


def _part(text, name, address):
    node = ast.parse(text)
    for step in name.split("."):
        if step == "__doc__":
            docstring = ast.get_docstring(node)
            if docstring is None:
                raise SourceMissingError(f"found no docstring for '{address}'")
            return docstring.strip()
        inside = [child for child in node.body if getattr(child, "name", None) == step]
        if not inside:
            raise SourceMissingError(f"found no '{step}' for '{address}', expected it defined there")
        node = inside[0]
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))
