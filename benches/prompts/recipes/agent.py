"""Agent transcripts: tool calls and results in turn, and a next step whose text repeats much of the context."""

import json

from recipe import Edit, Recipe

SYSTEM = """
You are a coding agent working in a repository. You act through tools, one JSON object to a line:
{"tool": "read_file", "arguments": {"path": "..."}}
{"tool": "write_file", "arguments": {"path": "...", "content": "..."}}
{"tool": "replace_function", "arguments": {"path": "...", "name": "...", "source": "..."}}
{"tool": "apply_diff", "arguments": {"path": "...", "diff": "..."}}
{"tool": "run_tests", "arguments": {"path": "..."}}
The user's next message brings the results. Where the user asks for code, a diff or a table instead, answer with that.
"""


def call(tool, **arguments):
    """Return a tool call as the assistant writes it; placeholders in the arguments must be of the json kind."""
    return json.dumps({"tool": tool, "arguments": arguments}, ensure_ascii=False)


def result(text):
    """Return a tool's result as the user turn that carries it, so that any chat template takes it."""
    return f"Tool result:\n{text.strip()}"


def transcript(name, tokens, *turns, edits=None):
    """Return the recipe of a transcript whose turns alternate, the user first."""
    roles = ("user", "assistant")
    spoken = tuple((roles[i % 2], turn) for i, turn in enumerate(turns))
    return Recipe(f"agent/{name}", (("system", SYSTEM), *spoken), tokens, edits or {})


DEDENT_HEAD = r"""
import re

_whitespace_only_re = re.compile('^[ \t]+$', re.MULTILINE)
_leading_whitespace_re = re.compile('(^[ \t]*)(?:[^ \t\n])', re.MULTILINE)
"""

# Recorded from runs of such tests on the edited functions; the folder before the paths and the line-by-line comparison
# after each message are left out.
DEDENT_TEST_OUTPUT = r"""
F..F
======================================================================
FAIL: test_common_part_of_mixed_margins (tests.test_texttools.DedentTest.test_common_part_of_mixed_margins)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "tests/test_texttools.py", line 17, in test_common_part_of_mixed_margins
    self.assertEqual(dedent(" \ta\n  b\n"), "\ta\n b\n")
AssertionError: 'a\n  b\n' != '\ta\n b\n'

======================================================================
FAIL: test_tabs_and_spaces_share_no_margin (tests.test_texttools.DedentTest.test_tabs_and_spaces_share_no_margin)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "tests/test_texttools.py", line 14, in test_tabs_and_spaces_share_no_margin
    self.assertEqual(dedent("  a\n\tb\n"), "  a\n\tb\n")
AssertionError: ' a\n\tb\n' != '  a\n\tb\n'

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=2)
"""

CORRELATION_TEST_OUTPUT = """
.E.
======================================================================
ERROR: test_correlation_of_opposite_inputs (tests.test_relation.RelationTest.test_correlation_of_opposite_inputs)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "tests/test_relation.py", line 17, in test_correlation_of_opposite_inputs
    self.assertEqual(correlation(self.rising, self.falling), -1.0)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "relation.py", line 64, in correlation
    return sxy / sqrt(sxx * sxy)
                 ^^^^^^^^^^^^^^^
ValueError: math domain error

----------------------------------------------------------------------
Ran 3 tests in 0.001s

FAILED (errors=1)
"""

INVENTORY = """
sku,name,shelf,quantity,unit_price,reorder_at
HX-1001,hex bolt M6 x 20,A-01,420,0.12,100
HX-1002,hex bolt M6 x 30,A-01,385,0.14,100
HX-1003,hex bolt M8 x 30,A-02,260,0.21,80
NT-2001,hex nut M6,A-03,900,0.04,250
NT-2002,hex nut M8,A-03,610,0.06,200
WS-3001,flat washer M6,A-04,1500,0.02,400
WS-3002,spring washer M8,A-04,740,0.05,200
SC-4001,wood screw 4 x 40,B-01,980,0.07,300
SC-4002,wood screw 5 x 60,B-01,450,0.11,150
"""


def create_item(sku, name, shelf, quantity, unit_price, reorder_at):
    """Return the tool call that adds one line of the inventory."""
    location = {"building": "main", "shelf": shelf}
    stock = {"quantity": quantity, "unit": "piece", "reorder_at": reorder_at}
    price = {"amount": unit_price, "currency": "EUR"}
    return call("create_item", sku=sku, name=name, location=location, stock=stock, price=price)


SERVICES = """
{
  "services": [
    {"name": "gateway", "image": "registry.example/gateway:1.4.2", "replicas": 2, "port": 8080,
     "health": {"path": "/healthz", "interval_seconds": 10, "timeout_seconds": 2},
     "resources": {"cpu": "500m", "memory": "256Mi"}, "log_level": "info"},
    {"name": "accounts", "image": "registry.example/accounts:1.4.2", "replicas": 2, "port": 8081,
     "health": {"path": "/healthz", "interval_seconds": 10, "timeout_seconds": 2},
     "resources": {"cpu": "500m", "memory": "512Mi"}, "log_level": "info"},
    {"name": "billing", "image": "registry.example/billing:1.4.2", "replicas": 1, "port": 8082,
     "health": {"path": "/healthz", "interval_seconds": 10, "timeout_seconds": 2},
     "resources": {"cpu": "250m", "memory": "512Mi"}, "log_level": "info"},
    {"name": "mailer", "image": "registry.example/mailer:1.4.2", "replicas": 1, "port": 8083,
     "health": {"path": "/healthz", "interval_seconds": 10, "timeout_seconds": 2},
     "resources": {"cpu": "250m", "memory": "256Mi"}, "log_level": "info"},
    {"name": "search", "image": "registry.example/search:1.4.2", "replicas": 3, "port": 8084,
     "health": {"path": "/healthz", "interval_seconds": 10, "timeout_seconds": 2},
     "resources": {"cpu": "1000m", "memory": "1024Mi"}, "log_level": "info"}
  ]
}
"""

BASENAME_TESTS = """
import unittest

from paths import basename, dirname


class BasenameTest(unittest.TestCase):
    def test_relative(self):
        self.assertEqual(basename("foo/bar"), "bar")

    def test_absolute(self):
        self.assertEqual(basename("/foo/bar"), "bar")

    def test_root(self):
        self.assertEqual(basename("/"), "")

    def test_no_slash(self):
        self.assertEqual(basename("foo"), "foo")

    def test_slash_at_the_end(self):
        self.assertEqual(basename("foo/bar/"), "")

    def test_many_slashes(self):
        self.assertEqual(basename("//foo//bar"), "bar")

    def test_bytes(self):
        self.assertEqual(basename(b"/foo/bar"), b"bar")
"""


def replace_methods(*names):
    """Return one call of replace_function for each method of shortrepr.py."""
    return "\n".join(
        call("replace_function", path="shortrepr.py", name=f"Repr.{name}", source=f"<<json:edited:{name}>>")
        for name in names
    )


def results_ok(*names):
    """Return the results of those calls."""
    return result("\n".join(json.dumps({"ok": True, "path": "shortrepr.py", "name": f"Repr.{name}"}) for name in names))


PATH_LIKE = "str | os.PathLike[str]"

RECIPES = (
    transcript(
        "rename_in_sibling",
        448,
        "In sorting.py rename the parameters `lo` and `hi` of the insort functions to `low` and `high`, also in the "
        "docstrings. The bisect functions keep their names for now. One function to a step, please.",
        call("read_file", path="sorting.py"),
        result("<<bisect.py:insort_right>>\n\n\n<<bisect.py:insort_left>>\n\n\n<<bisect.py:bisect_right>>"),
        call("replace_function", path="sorting.py", name="insort_right", source="<<json:edited:right>>"),
        result('{"ok": true, "path": "sorting.py", "name": "insort_right"}\n\nNext: insort_left, the same way.'),
        edits={
            "right": Edit(
                "bisect.py:insort_right",
                (
                    ("lo=0, hi=None", "low=0, high=None"),
                    ("args lo", "args low"),
                    ("and hi (", "and high ("),
                    ("lo = ", "low = "),
                    ("lo, hi", "low, high"),
                    ("insert(lo", "insert(low"),
                ),
            )
        },
    ),
    transcript(
        "repeat_diff",
        384,
        "Modernise errors.py: f-strings instead of `.format`, and `super().__init__` instead of `Error.__init__`. "
        "Answer with unified diffs, one class at a time. The file:\n\n```python\n"
        "<<configparser.py:DuplicateSectionError>>\n\n\n<<configparser.py:DuplicateOptionError>>\n```",
        "```diff\n<<diff:section>>\n```",
        "Applied, the tests pass. Now the same for DuplicateOptionError, again as a unified diff with two lines of "
        "context.",
        edits={
            "section": Edit(
                "configparser.py:DuplicateSectionError",
                (
                    ('" [line {0:2d}]".format(lineno)', 'f" [line {lineno:2d}]"'),
                    ("Error.__init__(self, ", "super().__init__("),
                ),
                "errors.py",
            )
        },
    ),
    transcript(
        "fix_failing_test",
        512,
        "The tests of texttools.py fail since yesterday's clean-up. Find out why and fix it.",
        call("read_file", path="texttools.py"),
        result(f"{DEDENT_HEAD.strip()}\n\n\n<<edited:dedent>>"),
        call("run_tests", path="tests/test_texttools.py"),
        result(DEDENT_TEST_OUTPUT)
        + "\n\nThe margin keeps one character too many when it is cut at the first difference. "
        "Show me the whole corrected function `dedent` in a code block.",
        edits={"dedent": Edit("textwrap.py:dedent", (("margin[:i]", "margin[:i + 1]"),))},
    ),
    transcript(
        "json_calls",
        576,
        "Add the lines of this inventory with the tool create_item, one call to a line, the first four now.\n\n"
        + INVENTORY.strip(),
        "\n".join(
            (
                create_item("HX-1001", "hex bolt M6 x 20", "A-01", 420, 0.12, 100),
                create_item("HX-1002", "hex bolt M6 x 30", "A-01", 385, 0.14, 100),
                create_item("HX-1003", "hex bolt M8 x 30", "A-02", 260, 0.21, 80),
                create_item("NT-2001", "hex nut M6", "A-03", 900, 0.04, 250),
            )
        ),
        result(
            "\n".join(
                json.dumps({"ok": True, "sku": sku, "created": True})
                for sku in ("HX-1001", "HX-1002", "HX-1003", "NT-2001")
            )
        )
        + "\n\nGo on with the remaining five lines, all in one answer.",
    ),
    transcript(
        "reformat_table",
        640,
        "Put the table of docs/operators.txt into Markdown.",
        call("read_file", path="docs/operators.txt"),
        result("<<topic:operator-summary[14:61]>>")
        + "\n\nWrite it as a Markdown table with the same two columns, `Operator` and `Description`, one table row "
        "for each box, in the same order and with the same words, cell texts joined to one line.",
    ),
    transcript(
        "fix_traceback",
        448,
        "tests/test_relation.py fails. Please repair relation.py.",
        call("read_file", path="relation.py"),
        result(
            "from math import fsum, sqrt\n\n\nclass StatisticsError(ValueError):\n    pass\n\n\n"
            "<<statistics.py:covariance>>\n\n\n<<edited:correlation>>"
        ),
        call("run_tests", path="tests/test_relation.py"),
        result(CORRELATION_TEST_OUTPUT),
        edits={"correlation": Edit("statistics.py:correlation", (("sqrt(sxx * syy)", "sqrt(sxx * sxy)"),))},
    ),
    transcript(
        "edit_config",
        768,
        "Release 1.5.0 is out. Please update deploy/services.json: every image to 1.5.0, and the log level of search "
        "to debug.",
        call("read_file", path="deploy/services.json"),
        result(SERVICES) + "\n\nShow me the whole new file in a code block before you write it.",
    ),
    transcript(
        "type_hints",
        320,
        "Add type hints to the functions of filecopy.py, one function at a time; the bodies and docstrings stay.",
        call("read_file", path="filecopy.py"),
        result("import os\n\n\n<<shutil.py:copy>>\n\n\n<<shutil.py:copy2>>\n\n\n<<shutil.py:copymode>>"),
        call("replace_function", path="filecopy.py", name="copy", source="<<json:edited:copy>>"),
        result('{"ok": true, "path": "filecopy.py", "name": "copy"}'),
        call("replace_function", path="filecopy.py", name="copy2", source="<<json:edited:copy2>>"),
        result('{"ok": true, "path": "filecopy.py", "name": "copy2"}\n\nLast one: copymode (it returns nothing).'),
        edits={
            name: Edit(
                f"shutil.py:{name}",
                (
                    (
                        f"def {name}(src, dst, *, follow_symlinks=True):",
                        f"def {name}(src: {PATH_LIKE}, dst: {PATH_LIKE}, *, follow_symlinks: bool = True) -> str:",
                    ),
                ),
            )
            for name in ("copy", "copy2")
        },
    ),
    transcript(
        "rename_everywhere",
        512,
        "In codec.py rename the parameter `s` to `data` in every function that grep finds, docstrings too.\n\n"
        "$ grep -n 'def .*(s)' codec.py\n"
        "1:def standard_b64encode(s):\n9:def standard_b64decode(s):\n20:def urlsafe_b64encode(s):\n"
        "30:def urlsafe_b64decode(s):",
        call("read_file", path="codec.py"),
        result(
            "<<base64.py:standard_b64encode>>\n\n\n<<base64.py:standard_b64decode>>\n\n\n"
            "<<base64.py:urlsafe_b64encode>>\n\n\n<<base64.py:urlsafe_b64decode>>"
        ),
        call("replace_function", path="codec.py", name="standard_b64encode", source="<<json:edited:encode>>")
        + "\n"
        + call("replace_function", path="codec.py", name="standard_b64decode", source="<<json:edited:decode>>"),
        result(
            '{"ok": true, "path": "codec.py", "name": "standard_b64encode"}\n'
            '{"ok": true, "path": "codec.py", "name": "standard_b64decode"}'
        )
        + "\n\nNow the two urlsafe functions.",
        edits={
            "encode": Edit("base64.py:standard_b64encode", (("(s)", "(data)"), ("object s ", "object data "))),
            "decode": Edit("base64.py:standard_b64decode", (("(s)", "(data)"), ("Argument s ", "Argument data "))),
        },
    ),
    transcript(
        "sibling_tests",
        384,
        "paths.py has tests for basename but none for dirname. Write them.",
        call("read_file", path="paths.py") + "\n" + call("read_file", path="tests/test_paths.py"),
        result(
            "import os\n\n\n<<posixpath.py:basename>>\n\n\n<<posixpath.py:dirname>>\n\n\n<<posixpath.py:split>>\n"
            f"\nTool result:\n{BASENAME_TESTS.strip()}"
        )
        + "\n\nWrite a class DirnameTest with the same seven tests, same names, same paths. Only the class, in a code "
        "block.",
    ),
    transcript(
        "rejected_diff",
        832,
        "In iterators.py rename the parameter `fp` of `_structure` to `stream`.",
        call("read_file", path="iterators.py"),
        result("<<email/iterators.py>>"),
        call("apply_diff", path="iterators.py", diff="<<json:diff:structure>>"),
        result('{"ok": false, "error": "hunk 1 does not apply: the file has other line endings"}')
        + "\n\nThen write the whole file anew with write_file, with that change made.",
        edits={
            "structure": Edit(
                "email/iterators.py",
                (
                    ("msg, fp=None", "msg, stream=None"),
                    ("if fp is None", "if stream is None"),
                    ("fp = sys.stdout", "stream = sys.stdout"),
                    ("file=fp", "file=stream"),
                    ("subpart, fp", "subpart, stream"),
                ),
                "iterators.py",
            )
        },
    ),
    transcript(
        "long_session",
        640,
        "Add type hints to the methods of the class in shortrepr.py: `x` is Any, `level` an int, the result a str. Use "
        "replace_function, a few methods to a step; change nothing else.",
        call("read_file", path="shortrepr.py"),
        result("import builtins\nfrom itertools import islice\nfrom typing import Any\n\n\n<<reprlib.py:Repr>>"),
        replace_methods("repr_tuple", "repr_list", "repr_array"),
        results_ok("repr_tuple", "repr_list", "repr_array"),
        replace_methods("repr_set", "repr_frozenset"),
        results_ok("repr_set", "repr_frozenset") + "\n\nGo on with repr_deque, repr_dict and repr_str.",
        edits={
            name: Edit(f"reprlib.py:Repr.{name}", (("(self, x, level):", "(self, x: Any, level: int) -> str:"),))
            for name in ("repr_tuple", "repr_list", "repr_array", "repr_set", "repr_frozenset")
        },
    ),
)
