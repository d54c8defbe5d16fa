"""The parser of a command: errors in one line, a help of one screen, and a help with all options."""

from __future__ import annotations

import argparse
import copy
import textwrap
from collections.abc import Mapping
from typing import Any, NoReturn

from gossipgrad.errors import GONE, did_you_mean

_NAMES = 40  # max columns of a list of choices; a longer one is in the text


class UsageError(Exception):
    """Invalid options; exit code 2."""


def _choices(action: argparse.Action) -> str:
    """The names that are too many for the option's line; "" if they are few."""
    names = "" if action.choices is None or action.metavar else ", ".join(map(str, action.choices))
    return names if len(names) > _NAMES else ""


class _Help(argparse.HelpFormatter):
    """Every option shows its default, whether its help text does or not; `short`: texts are unchanged."""

    def __init__(self, prog: str, column: int = 32, short: bool = False) -> None:
        super().__init__(prog, max_help_position=column)
        self._short = short

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)  # names stay whole

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.splitlines())

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        names = "NAME" if _choices(action) else None
        made = super()._metavar_formatter(action, default_metavar)
        return (lambda size: (names,) * size) if names else made

    def _get_help_string(self, action: argparse.Action) -> str:
        text, names = action.help or "", _choices(action)
        if self._short:
            return text
        names = f"; names: {names}" if names else ""
        switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
        if not action.option_strings or switch or action.required or "default: " in text:
            return text + names
        value = action.default
        if isinstance(value, (tuple, list)):
            value = ",".join(map(str, value))
        elif isinstance(value, bool):
            value = "on" if value else "off"
        shown = "none" if value is None else str(value).replace("%", "%%")
        return f"{text}; default: {shown}{names}" if text else f"default: {shown}{names}"


class _HelpAll(argparse.Action):
    """--help-all: every option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.short = {}
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Errors in one line, raised like all others."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **how})
        self.usage = how.get("usage", "%(prog)s [options]")
        self.short: Mapping[str, str] = {}

    def shorten(self, description: str, short: Mapping[str, str], examples: str) -> None:
        """--help shows the options `short` with these texts; --help-all shows all."""
        self.description, self.short = description, short
        self.epilog = f"examples:\n{textwrap.indent(examples, '  ')}"
        count = len(self._actions) + 1
        self.add_argument("--help-all", nargs=0, action=_HelpAll, help=f"all {count} options with their defaults")

    def format_help(self) -> str:
        if not self.short:
            return super().format_help()
        by_name = {action.dest: action for action in self._actions}
        formatter = _Help(self.prog, 26, short=True)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("options")
        for name, text in self.short.items():
            action = copy.copy(by_name[name])
            action.help = text
            formatter.add_argument(action)
        for name in ("help", "help_all"):
            formatter.add_argument(by_name[name])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(
                action, f"{error.message}{did_you_mean(value, action.choices or ())}"
            ) from None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            name = str(rest[0]).partition("=")[0]
            hint = did_you_mean(name, self._option_string_actions) if name.startswith("-") else ""
            if name.removeprefix("--") in GONE:
                hint = f"; {GONE[name.removeprefix('--')]}"
            if name in ("-n", "-np", "--np", "--nproc-per-node", "--nproc_per_node"):
                hint = "; several ranks are started by gossipgrad run -n N COMMAND"
            self.error(f"unrecognized arguments: {' '.join(map(str, rest))}{hint}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help{'-all' if self.short else ''})")
