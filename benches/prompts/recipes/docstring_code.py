"""Write a function from its signature and docstring; the answer is new code, not a copy of the prompt."""

from recipe import Recipe

SYSTEM = "You are a Python programmer. Answer with the complete function in one code block."


def write(name, body, tokens=256):
    """Return the recipe that asks for the function whose head is ``body``."""
    request = f"Write this function. Use only the standard library.\n\n```python\n{body.strip()}\n```"
    return Recipe(f"docstring_code/{name}", (("system", SYSTEM), ("user", request)), tokens)


def from_library(name, signature, address, tokens=320):
    """Return the recipe that asks for a function which the standard library has, by the library's own docstring."""
    return write(name, f'{signature}\n    r"""<<{address}.__doc__>>\n    """', tokens)


RECIPES = (
    write(
        "run_lengths",
        '''
def run_lengths(items):
    """Return a list of (item, count) pairs, one for each run of equal neighbours.

    >>> run_lengths("aabccc")
    [('a', 2), ('b', 1), ('c', 3)]
    >>> run_lengths([])
    []
    """
''',
    ),
    write(
        "parse_duration",
        '''
def parse_duration(text: str) -> int:
    """Return the number of seconds in a duration such as "1h30m", "45s" or "2d 4h".

    The units are d, h, m and s; each may appear once, in this order, with optional spaces between.
    Raise ValueError, naming the text, when it has any other form or is empty.

    >>> parse_duration("1h30m")
    5400
    """
''',
    ),
    write(
        "merge_intervals",
        '''
def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge half-open intervals (start, end) that overlap or touch, and return them sorted by start.

    Empty intervals (start == end) are dropped. The argument is not changed.

    >>> merge_intervals([(5, 8), (1, 3), (3, 4), (7, 9)])
    [(1, 4), (5, 9)]
    """
''',
    ),
    write(
        "lru_cache",
        '''
class LeastRecentlyUsed:
    """A dictionary that keeps at most `capacity` entries and forgets the one that was used longest ago.

    Methods
    -------
    get(key, default=None)
        Return the value of key and mark it as used now; the default where there is none.
    put(key, value)
        Store the value, mark the key as used now, and drop the oldest entry if there are too many.
    __len__()
        Return the number of entries.
    """
''',
        320,
    ),
    write(
        "topological_order",
        '''
def topological_order(needs: dict[str, set[str]]) -> list[str]:
    """Return the tasks in an order in which each comes after all the tasks it needs.

    `needs` maps a task to the tasks it needs; a task that is only mentioned as a need counts too.
    Among tasks that are free at the same time, the alphabetical order holds.
    Raise ValueError with the names on a cycle if there is one.

    >>> topological_order({"test": {"build"}, "build": {"fetch"}, "docs": {"fetch"}})
    ['fetch', 'build', 'docs', 'test']
    """
''',
        320,
    ),
    write(
        "format_table",
        '''
def format_table(rows: list[dict[str, object]], columns: list[str]) -> str:
    """Return the rows as a Markdown table with the given columns in the given order.

    Columns are padded to equal width; numbers are aligned right, all else left. A missing value is an empty cell,
    and a vertical bar inside a value is escaped with a backslash. There is no newline at the end.
    """
''',
        384,
    ),
    write(
        "binary_search",
        '''
def first_true(low: int, high: int, predicate) -> int:
    """Return the smallest n with low <= n < high for which predicate(n) is true, or high if there is none.

    The predicate must be monotone: once true, it stays true. It is called at most about log2(high - low) + 1 times.

    >>> first_true(0, 100, lambda n: n * n >= 50)
    8
    """
''',
        192,
    ),
    write(
        "word_wrap",
        '''
def wrap_paragraph(words: list[str], width: int) -> list[str]:
    """Break words into lines of at most `width` characters so that the sum of squared trailing spaces is least.

    The last line costs nothing. A word longer than the width stands alone on its line.
    Among equally good layouts, return the one whose first line is longest.
    """
''',
        384,
    ),
    from_library(
        "close_matches",
        "def get_close_matches(word, possibilities, n=3, cutoff=0.6):",
        "difflib.py:get_close_matches",
    ),
    from_library("filemode", "def filemode(mode):", "stat.py:filemode", 256),
    from_library("median_high", "def median_high(data):", "statistics.py:median_high", 192),
    from_library("dedent", "def dedent(text):", "textwrap.py:dedent", 384),
)
