"""Messages that name parameters of Python, in the words of the shell: the options of the command that is run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection

# A parameter with its value; what stands in the parentheses of a call is code that is shown as code.
_CALL = re.compile(r"[\w.]+\([^()]*\)")
_LITERAL = r"\[[^\[\]]*\]|'[^']*'|\"[^\"]*\"|True|False|-?\d+(?:\.\d+)?(?![\w.])"
_PARAMETER = re.compile(rf"(?<![\w.\-'\"])([a-z_]+)=({_LITERAL})")


def in_the_shell(message: str, options: Collection[str]) -> str:
    """A message with the options of a command in place of the parameters that they stand for.

    Parameters
    ----------
    message : str
    options : collection of str
        The names of the command's parameters; other names stay as they are.

    Examples
    --------
    >>> in_the_shell("leave it out: drop=['a b'], or task='regression'", ["drop", "task"])
    "leave it out: --drop 'a b', or --task regression"
    """
    parts, end = [], 0
    for call in _CALL.finditer(message):
        parts += [_translated(message[end : call.start()], options), call.group()]
        end = call.end()
    return "".join([*parts, _translated(message[end:], options)])


def _translated(text: str, options: Collection[str]) -> str:
    """A text without calls, its parameters as options."""

    def option(found: re.Match[str]) -> str:
        name, literal = found.groups()
        if name not in options:
            return found.group()
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            return found.group()
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            return flag if value else f"no {flag}"
        values = value if isinstance(value, list) else [value]
        # a list of which the message leaves the names to the reader
        given = ["..." if each is Ellipsis else shlex.quote(str(each)) for each in values]
        return " ".join(f"{flag} {each}" for each in given) or found.group()

    return _PARAMETER.sub(option, text)
