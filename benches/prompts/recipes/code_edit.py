"""Rewrite a file of the standard library with one change; the answer is the whole file again."""

from recipe import Recipe

SYSTEM = "You are a careful programmer. You answer with the complete new file in one code block and nothing else."


def rewrite(name, path, change, tokens):
    """Return the recipe that asks for ``path`` again with ``change`` made."""
    request = f"{change} Change nothing else. Answer with the whole file.\n\n`{path}`:\n```python\n<<{path}>>\n```"
    return Recipe(f"code_edit/{name}", (("system", SYSTEM), ("user", request)), tokens)


RECIPES = (
    rewrite(
        "rename_parameter",
        "bisect.py",
        "In every function of this file, rename the parameter `hi` to `high`, in the code and in the docstrings.",
        1024,
    ),
    rewrite("change_constant", "secrets.py", "Set `DEFAULT_ENTROPY` to 48.", 704),
    rewrite(
        "rename_function",
        "email/encoders.py",
        "Rename the function `encode_7or8bit` to `encode_seven_or_eight_bit`, also in `__all__`.",
        640,
    ),
    rewrite(
        "add_type_hints",
        "json/scanner.py",
        "Add type hints to the parameters and the result of the inner function `_scan_once` "
        "(`string` is a str, `idx` an int, the result a tuple of any value and an int).",
        832,
    ),
    rewrite(
        "add_docstring",
        "curses/ascii.py",
        'Give the function `unctrl` the docstring """Return a printable name of the ASCII character c.""".',
        1472,
    ),
    rewrite(
        "add_method",
        "urllib/error.py",
        "Add a method `__repr__` to the class `URLError`, after its `__str__`, that returns "
        "`URLError(` followed by the repr of `self.reason` and a closing parenthesis.",
        768,
    ),
    rewrite("change_default", "json/tool.py", "Make the default of the option `--indent` 2 instead of 4.", 896),
    rewrite(
        "rename_variable",
        "asyncio/format_helpers.py",
        "In the functions `_format_callback_source` and `_format_callback`, rename the local variable "
        "`func_repr` to `description`.",
        704,
    ),
    rewrite(
        "modern_super",
        "urllib/response.py",
        "Replace every `super(name, self)` call by the plain `super()` form.",
        640,
    ),
    rewrite(
        "rename_private",
        "signal.py",
        "Rename the private function `_int_to_enum` to `_to_member` where it is defined and where it is called.",
        832,
    ),
    rewrite(
        "replace_idiom",
        "unittest/signals.py",
        "Drop the needless base class `object` from `_InterruptHandler` and iterate over `_results` "
        "instead of `_results.keys()`.",
        640,
    ),
)
