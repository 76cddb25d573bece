"""Questions about long documents; the answer quotes the passages word for word before it answers."""

from recipe import Recipe

SYSTEM = (
    "You answer questions from documents. First quote, word for word, the passages that the answer rests on, each "
    "with the number of its document. Then answer in one short paragraph. Say so if the documents do not tell."
)


def ask(name, addresses, question, tokens=320):
    """Return the recipe that puts a question after the documents at ``addresses``."""
    documents = "\n\n".join(
        f'<document number="{number}">\n<<{address}>>\n</document>' for number, address in enumerate(addresses, 1)
    )
    request = f"{documents}\n\nQuestion: {question}\nQuote the relevant passages word for word, then answer."
    return Recipe(f"long_qa/{name}", (("system", SYSTEM), ("user", request)), tokens)


RECIPES = (
    ask(
        "with_and_try",
        ("topic:with", "topic:try"),
        "An exception is raised inside the body of a `with` statement that stands in a `try` with a `finally` clause. "
        "What is `__exit__` called with, when is the exception suppressed, and what happens to a saved exception if "
        "the `finally` clause executes a `return`?",
    ),
    ask(
        "string_literals",
        ("topic:strings", "topic:augassign"),
        "Which prefixes may a string literal have, what does a backslash mean in a raw string, why can a raw literal "
        "not end in a single backslash, and what does a bytes literal allow?",
    ),
    ask(
        "servers",
        ("socketserver.py:__doc__", "http/server.py:BaseHTTPRequestHandler.__doc__", "http/client.py:__doc__"),
        "How do I make a server that handles every request in its own thread, what must the handler class define, "
        "and which method does the HTTP handler call for a request of type SPAM?",
    ),
    ask(
        "imports",
        ("topic:import", "topic:class"),
        "What does `from package import *` bind when the module defines `__all__`, what when it does not, and where "
        "in a program is the star form allowed?",
    ),
    ask(
        "arguments",
        ("topic:function", "topic:binary"),
        "When are default parameter values evaluated, why is a list as default value a trap, and what does a bare "
        "`*` in the parameter list mean?",
    ),
    ask(
        "licence",
        ("repo:LICENSE",),
        "I change one file of this work and pass my version on as a part of a closed product. What must I do, may I "
        "put my own terms on my changes, and what becomes of my patent licence if I sue somebody over the work?",
    ),
    ask(
        "open_files",
        ("_pyio.py:open.__doc__", "fileinput.py:__doc__"),
        "Which mode creates a new file and fails if it exists, how is buffering chosen when no argument is given, "
        "and what happens to the newlines of a text file on reading when `newline` is None?",
    ),
    ask(
        "differences",
        ("difflib.py:SequenceMatcher.__doc__", "difflib.py:Differ.__doc__", "statistics.py:__doc__"),
        "What is the idea of the SequenceMatcher algorithm, how long can it take in the worst case, and what do the "
        "two-letter codes of a Differ delta mean?",
    ),
    ask(
        "keeping_data",
        ("json/__init__.py:__doc__", "shelve.py:__doc__", "_threading_local.py:__doc__", "argparse.py:__doc__"),
        "How do I get the most compact JSON output, what goes wrong when I change a list that I took from a shelf, and "
        "what does the writeback parameter do about it and at what price?",
    ),
    ask(
        "names_and_scopes",
        ("topic:naming", "topic:exceptions", "topic:subscriptions"),
        "What is a block, what happens when a name is bound anywhere within a block but used before that, and how "
        "do the scopes of class blocks differ from those of functions?",
    ),
    ask(
        "sound_files",
        ("aifc.py:__doc__", "wave.py:__doc__"),
        "When must the parameters of a new file be set, what does close() do to the header, and which compression "
        "types does each of the two modules name?",
    ),
)
