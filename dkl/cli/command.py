"""Turns functions into commands: groups of options, one form of result, errors with the names of options."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from dkl.errors import DklHint
from dkl.plain_text import plain_text, value_text
from dkl.progress import PROGRESS_LOG

# Exit codes; 130 is 128 plus the number of SIGINT, as in shells.
FAILED, INTERRUPTED = 1, 130


@dataclass(frozen=True)
class Running:
    """Options of every command."""

    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False

    @property
    def progress(self) -> bool | None:
        """The value of learners' `progress`: off with --quiet and --json, else shown in interactive use."""
        # progress is shown on standard error, which a script that reads JSON may record
        return False if self.quiet or self.json else None


@dataclass(frozen=True)
class Result:
    """The result of a command.

    Parameters
    ----------
    facts : mapping
        The output of ``--json``.
    view : rich renderable or None
        The output otherwise; None shows the facts as a table.
    """

    facts: Mapping[str, Any]
    view: RenderableType | None = None


@contextmanager
def said_if_interrupted(note: str) -> Iterator[None]:
    """Add a note to the message of the command if a Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(note)
        raise


def add_command(app: typer.Typer, function: Callable[..., Result], *examples: str) -> None:
    """Add a function that returns a `Result` to `app`, as the command of its name; examples end its help.

    A parameter annotated with a dataclass is replaced by one option for each field; an error prints one message and
    exits with code 1.
    """
    hints = get_type_hints(function)
    groups = {
        name: hint for name, hint in hints.items() if name != "return" and isinstance(hint, type) and is_dataclass(hint)
    }

    @functools.wraps(function)
    def run(**given: Any) -> None:
        options = {
            parameter: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for parameter, group in groups.items()
        }
        running = next((group for group in options.values() if isinstance(group, Running)), Running())
        _report(lambda: function(**given, **options), running, names)

    # typer reads the options from the signature, which must have the fields of the groups
    parameters = _signature(function, groups)
    names = {parameter.name for parameter in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    epilog = f"Example{'s' * (len(examples) > 1)}: {', '.join(f'[bold]{example}[/bold]' for example in examples)}"
    text = paragraphs(function.__doc__ or "")
    app.command(function.__name__, cls=_Command, help=text, epilog=epilog, no_args_is_help=False)(run)


class _Command(TyperCommand):
    """A command that says what to do about a pattern of files that the shell has replaced by their names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            message = getattr(error, "message", "")
            if message.startswith("Got unexpected extra argument"):
                error.message = (  # type: ignore[attr-defined]
                    f"{message}. A pattern of files goes in quotes, 'part-*.csv', or the shell replaces it by their "
                    "names; dkl ingest takes the names of several files, too"
                )
            raise


def paragraphs(text: str) -> str:
    """A docstring with each paragraph on one line, so that the help can be wrapped at any width."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _signature(function: Callable[..., Any], groups: Mapping[str, type]) -> list[inspect.Parameter]:
    """The parameters of the function with each group replaced by its fields, in the group's panel of the help."""
    # with extras, as typer reads `Annotated[..., typer.Option(...)]`
    hints = get_type_hints(function, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            field_hints = get_type_hints(groups[name], include_extras=True)
            for field in fields(groups[name]):
                hint = field_hints[field.name]
                # a copy, since an option may belong to several groups
                option = copy(hint.__metadata__[0])
                option.rich_help_panel = option.rich_help_panel or getattr(groups[name], "panel", None)
                hint, keyword = Annotated[hint.__origin__, option], inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(field.name, keyword, default=field.default, annotation=hint))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
    return parameters


def _report(work: Callable[[], Result], running: Running, options: Collection[str] = ()) -> None:
    """Do the work and print its result, or its error with the names of options, and exit with the exit code."""

    def show_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
        # deprecation warnings of libraries are not for users of a command
        if issubclass(category, UserWarning | RuntimeWarning):
            word = ("Hint: ", "cyan") if issubclass(category, DklHint) else ("Warning: ", "yellow")
            text = getattr(message, "in_shell", "") or in_the_shell(str(message), options)
            stderr().print(Text.assemble(word, text))

    with warnings.catch_warnings(), _progress_lines():
        warnings.showwarning = show_warning
        try:
            result = work()
        except KeyboardInterrupt as stopped:
            notes = getattr(stopped, "__notes__", ())
            stderr().print(Text.assemble(("interrupted", "bold red"), *(f"\n  {note}" for note in notes)))
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.BadParameter):
            raise
        except Exception as error:
            # str() of a KeyError puts the message into quotes
            is_key = isinstance(error, KeyError) and bool(error.args)
            message = str(error.args[0]) if is_key else str(error) or type(error).__name__
            message = in_the_shell(message, options)
            notes = list(getattr(error, "__notes__", ()))
            if running.json:
                facts = {"type": type(error).__name__, "message": message, "notes": notes}
                typer.echo(json.dumps({"error": facts}))
            console = stderr()
            if running.debug:
                console.print_exception()
            console.print(Text.assemble(("Error: ", "bold red"), message, *(f"\n  {note}" for note in notes)))
            raise typer.Exit(FAILED) from None
    try:
        if running.json:
            typer.echo(json.dumps(result.facts, default=as_json, indent=2))
        else:
            view = facts_table(result.facts) if result.view is None else result.view
            # texts have their own line breaks, and may contain commands to be copied
            _Output().print(view, soft_wrap=isinstance(view, Text))
        sys.stdout.flush()
    except BrokenPipeError:
        # the work is done, and the reader of the pipe (``| head``) needs no more output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _progress_lines() -> Iterator[None]:
    """Log the progress every 30 s to standard error if that is not a terminal, as in a batch job."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level = PROGRESS_LOG.level
    PROGRESS_LOG.addHandler(handler)
    PROGRESS_LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        PROGRESS_LOG.removeHandler(handler)
        PROGRESS_LOG.setLevel(level)


class _Console(Console):
    """A console in which texts from files cannot control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain_text(segment.text), segment.style)


class _Output(_Console):
    """A console that raises BrokenPipeError if its reader ends, where Rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stderr() -> Console:
    """The console for progress, warnings and errors; standard output has only results."""
    return _Console(stderr=True, soft_wrap=not sys.stderr.isatty())


def table_of(*heads: str, title: str | None = None, is_framed: bool = False) -> Table:
    """An empty table whose first column is of texts, and the others of numbers; without a title and a frame by default.

    Parameters
    ----------
    *heads : str
    title : str or None
    is_framed : bool
    """
    style: dict[str, Any] = {} if is_framed else {"box": None, "padding": (0, 2, 0, 0)}
    table = Table(title=title, title_justify="left", **style)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    return table


def facts_table(facts: Mapping[str, Any]) -> RenderableType:
    """A table of names and values."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(value_text(value)))
    return Group(table)


def as_json(value: object) -> Any:
    """NumPy values as JSON values."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


# A parameter with its value; the arguments of a call are Python code and stay as they are.
_CALL = re.compile(r"[\w.]+\([^()]*\)")
_LITERAL = r"\[[^\[\]]*\]|'[^']*'|\"[^\"]*\"|True|False|-?\d+(?:\.\d+)?(?![\w.])"
_PARAMETER = re.compile(rf"(?<![\w.\-'\"])([a-z_]+)=({_LITERAL})")


def in_the_shell(message: str, options: Collection[str]) -> str:
    """A message in which parameters of Python are replaced by options of a command.

    Parameters
    ----------
    message : str
    options : collection of str
        The names of the command's parameters; other names are unchanged.

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
    """A text without calls, with parameters replaced by options."""

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
        # `...` in a list stands for names that the user must fill in
        given = ["..." if each is Ellipsis else shlex.quote(str(each)) for each in values]
        return " ".join(f"{flag} {each}" for each in given) or found.group()

    return _PARAMETER.sub(option, text)
