"""The package's docstrings as reStructuredText.

They are written for help(): paragraphs, and lists of keywords in two columns, a name and its meaning. Here names
become the terms of a definition list, paragraphs are escaped, and text indented by four columns is shown as code.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

_NAMES = r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*"
_COLUMNS = re.compile(rf"({_NAMES})(?:  +|: )(\S.*)")
_TWO_COLUMNS = re.compile(rf"({_NAMES})  +(\S.*)")
_VALUE = re.compile(r"\s+(\"[^\"]+\"|None|True|False|\d|A table)(: |, )")
_ALONE = re.compile(rf"{_NAMES}")


def escaped(text: str) -> str:
    """`text` with nothing that reStructuredText would read as markup, but `code` in backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _escape(text.replace("`", "'"))
    code = (i % 2 == 1 and part.strip() == part != "" for i, part in enumerate(parts))
    return "".join(f"``{part}``" if is_code else _escape(part) for is_code, part in zip(code, parts, strict=True))


def _escape(text: str) -> str:
    return re.sub(r"([\\*|])|_(?!\w)", lambda found: "\\" + found.group(0), text)


def _paragraph(lines: list[str]) -> str:
    text = escaped(" ".join(line.strip() for line in lines))
    return "\\" + text if re.match(r"[-+•>:.=~#]|\w+[.)] |\(\w+\) ", text) else text


def _term(line: str, following: str, ended: bool, column: int, parameters: set[str]) -> tuple[str, str] | None:
    """(names, the text behind them), where this line begins the description of a keyword.

    column: where the text of the keyword before begins; a long name may leave one space before it.
    """
    names = line[:column].strip()
    if column and line[column - 1 : column] == " " and names in parameters:
        return names, line[column:]
    found = _TWO_COLUMNS.fullmatch(line)
    if found:
        return found.group(1), found.group(2)
    found = _COLUMNS.fullmatch(line)
    if found and ended and set(found.group(1).split(", ")) <= parameters:
        return found.group(1), found.group(2)
    if _ALONE.fullmatch(line) and following.startswith("  ") and set(line.split(", ")) <= parameters:
        return line, ""
    return None


def converted(lines: list[str], parameters: set[str]) -> list[str]:
    """The docstring's lines as reStructuredText; parameters: the names of the object's arguments and fields."""
    made: list[str] = []
    gathered: list[str] = []
    term: str | None = None
    column = 0  # of the text of the keyword before
    ended = True  # the line before ended a sentence

    def close() -> None:
        nonlocal term
        if term is not None:
            made.append(", ".join(f"``{name}``" for name in term.split(", ")))
            for part in _values(gathered):
                made.extend([f"    {_paragraph(part)}", ""])
        elif gathered:
            made.extend([_paragraph(gathered), ""])
        gathered.clear()
        term = None

    for i, line in enumerate([*lines, ""]):
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if not line.strip():
            close()
            ended = True
            continue
        if line.startswith("    ") and not gathered and term is None:
            if not (made and made[-1].startswith("    ")):
                made.extend([".. code-block:: default", ""])
            made.extend([f"    {line}", ""] if not following.startswith("    ") else [f"    {line}"])
            continue
        begins = None if line.startswith(" ") else _term(line, following, ended, column, parameters)
        if begins is not None:
            close()
            term = begins[0]
            column = _column(line, begins, following)
            gathered.extend([begins[1]] if begins[1] else [])
        else:
            if term is not None and column and not line.startswith(" "):
                close()
            gathered.append(line)
        ended = line.rstrip().endswith((".", ":"))
    return made


def _column(line: str, begins: tuple[str, str], following: str) -> int:
    """Where the keyword's text begins; 0: behind "name: ", and its further lines begin where the name does."""
    if not begins[1]:
        return len(following) - len(following.lstrip())
    return 0 if line.startswith(f"{begins[0]}: ") else len(line) - len(begins[1])


def _values(lines: list[str]) -> list[list[str]]:
    """The lines of a keyword, parted where a sentence about one of its values begins."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if parts[-1] and parts[-1][-1].endswith(".") and _VALUE.match(line):
            parts.append([])
        parts[-1].append(line)
    return parts


def _parameters(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(list(lines), _parameters(thing))


def _signature(app: Any, what: str, name: str, thing: Any, options: Any, arguments: str | None, result: Any) -> Any:
    """Shorter: a default that is made for each object has no text of its own, and *more refuses all that it gets.

    A class whose __init__ has a docstring of its own, below it on the page, opens with the arguments that the class's
    docstring lists.
    """
    if arguments is None:
        return None
    if what == "class" and thing.__init__.__doc__ not in (None, object.__init__.__doc__):
        arguments = _listed(thing) or arguments
    return re.sub(r"\*more: [^,)]*", "*", arguments).replace("<factory>", "..."), result


def _listed(thing: Any) -> str:
    """The signature with only the arguments in the docstring's two columns; "" if these are none or all."""
    parameters = inspect.signature(thing).parameters.values()
    names = {
        found.group(1) for line in (inspect.getdoc(thing) or "").splitlines() if (found := _TWO_COLUMNS.fullmatch(line))
    }
    shown, by_name = [], False
    for one in parameters:
        if one.name in names:
            if one.kind is one.KEYWORD_ONLY and not by_name:
                shown.append("*")
                by_name = True
            shown.append(one.name if one.default is one.empty else f"{one.name}={one.default!r}")
    count = len(shown) - by_name
    return f"({', '.join([*shown, '...'])})" if 0 < count < len(parameters) else ""


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    return {"version": "1", "parallel_read_safe": True}
