"""What a prompt is made of, and how a recipe becomes one line of a prompt set.

A message is a template. ``<<address>>`` stands for an excerpt (see ``sources``); ``<<edited:label>>`` for the
excerpt after the recipe's own edits, ``<<diff:label>>`` for the unified diff between the two; ``<<json:…>>`` around
any of these writes it as the inside of a JSON string, for tool calls that carry text.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import sources

PLACEHOLDER = re.compile(r"<<([^<>\n]+)>>")


@dataclass(frozen=True)
class Edit:
    """An excerpt, the replacements made in it (each must find its text), and the path its diff names."""

    address: str
    replacements: tuple[tuple[str, str], ...]
    path: str = ""

    def apply(self, text):
        for old, new in self.replacements:
            if old not in text:
                raise sources.SourceMissingError(f"found no {old!r} in '{self.address}', expected it there to replace")
            text = text.replace(old, new)
        return text


@dataclass(frozen=True)
class Recipe:
    """One prompt: its id, its messages as (role, template), the length of a full answer in tokens, its edits."""

    id: str
    messages: tuple[tuple[str, str], ...]
    max_new_tokens: int
    edits: Mapping[str, Edit] = field(default_factory=dict)

    def addresses(self):
        """Return the addresses of all excerpts used, in order of first use."""
        found = []
        for _, template in self.messages:
            for name in PLACEHOLDER.findall(template):
                kind, _, rest = name.removeprefix("json:").partition(":")
                address = self.edits[rest].address if kind in ("edited", "diff") else name.removeprefix("json:")
                if address not in found:
                    found.append(address)
        return found

    def prompt(self, set_name, python):
        """Return the prompt as a dictionary; ``python`` is the version that the excerpts are quoted from."""
        messages = [
            {"role": role, "content": PLACEHOLDER.sub(lambda match: self._text(match[1]), template.strip())}
            for role, template in self.messages
        ]
        return {
            "id": self.id,
            "set": set_name,
            "messages": messages,
            "max_new_tokens": self.max_new_tokens,
            "source": self._source(python),
        }

    def _text(self, name):
        kind, _, rest = name.partition(":")
        if kind == "json":
            return json.dumps(self._text(rest), ensure_ascii=False)[1:-1]
        if kind not in ("edited", "diff"):
            return sources.excerpt(name)
        edit = self.edits[rest]
        before = sources.excerpt(edit.address)
        after = edit.apply(before)
        if kind == "edited":
            return after
        path = edit.path or edit.address.partition(":")[0]
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", n=2, lineterm=""
        )
        return "\n".join(lines)

    def _source(self, python):
        addresses = self.addresses()
        titles = [sources.title(address) for address in addresses]
        if not addresses:
            return {"what": "own wording", "licence": "Apache-2.0"}
        licences = {sources.licence(address) for address in addresses}
        origin = f"CPython {python} " if "PSF-2.0" in licences else ""
        return {"what": f"own wording around {origin}" + "; ".join(titles), "licence": " AND ".join(sorted(licences))}
