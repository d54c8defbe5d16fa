"""Form: clang-format, ruff, mypy, the stubs of the core, and what no file may hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".git", "build", "dist", ".venv", "venv", "__pycache__", "data"}
BINARY = {".so", ".o", ".png", ".gz", ".npz", ".bin", ".pyc", ".safetensors", ".a", ".pdf", ".ico"}

# Paths of one machine have no place in a project; the parts are split lest this file find itself.
FORBIDDEN = ["/wo" + "rk/", "/ro" + r"ot\b", "/opt/py" + "pi", "http://127" + r"\.0"]


def project_files() -> list[Path]:
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            n for n in names if n not in SKIPPED_FOLDERS and not n.endswith((".egg-info", "_cache", "checkpoints"))
        ]
        found += [Path(folder, f) for f in files if Path(f).suffix not in BINARY and f not in ("_build.py", ".git")]
    return sorted(found)


# What no C file may hold, and why.
FORBIDDEN_C = {
    r"\(void \*\*\)": "breaks strict aliasing; gg_alloc takes the address of any pointer",
}


def c_files() -> list[str]:
    return [str(p) for p in project_files() if p.suffix in (".c", ".h")]


def check(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command[:4])} ...\n{done.stdout}\n{done.stderr}"


def tool(name: str) -> str:
    """A program of this environment, else of PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def test_clang_format():
    assert c_files()
    check(tool("clang-format"), "--dry-run", "-Werror", *c_files())


def test_clang_format_sees_a_breach(tmp_path):
    path = tmp_path / "x.c"
    path.write_text("int  f( void ){return 1;}\n")
    (tmp_path / ".clang-format").write_text((ROOT / ".clang-format").read_text())
    with pytest.raises(AssertionError, match="clang-format-violations"):
        check(tool("clang-format"), "--dry-run", "-Werror", str(path))


def test_ruff():
    check(sys.executable, "-m", "ruff", "check", ".")


def test_mypy():
    check(sys.executable, "-m", "mypy", "gossipgrad")


TYPED = """
import gossipgrad as gg

class Log(gg.Callback):
    def on_epoch_end(self, trainer: gg.Trainer, record: dict[str, object]) -> None:
        trainer.learning_rate = trainer.learning_rate / 2

net = gg.Sequential([gg.Linear(3, weight_init=("normal", 0.1))], input=(6,))
optimizer = gg.SGD(lr=0.1, schedule=lambda step: 0.9**step)
trainer = gg.Trainer(net, loss="cross_entropy", backend="native", optimizer=optimizer, metrics=["top_2_accuracy"])
train, test = gg.data.synthetic((6,), 3)
history: gg.History = trainer.fit(train, test, callbacks=[Log(), gg.EarlyStopping(mode="min")])
"""


def test_users_are_type_checked(tmp_path):
    """A program in strict mode passes; a word that is none of an argument's is seen."""
    path = tmp_path / "program.py"
    path.write_text(TYPED)
    check(sys.executable, "-m", "mypy", "--strict", str(path))
    for right, wrong in [
        ('loss="cross_entropy"', 'loss="mse"'),
        ('backend="native"', 'backend="cuda"'),
        ('mode="min"', 'mode="down"'),
        ('("normal", 0.1)', '"gauss"'),
        ("0.9**step", "str(step)"),
    ]:
        path.write_text(TYPED.replace(right, wrong))
        with pytest.raises(AssertionError, match="error: .*(Argument|incompatible type|Incompatible return)"):
            check(sys.executable, "-m", "mypy", "--strict", str(path))


def test_stubs_of_the_core():
    check(sys.executable, "-m", "mypy.stubtest", "gossipgrad._core")


def faults(name: str, text: str) -> list[str]:
    found = []
    code = Path(name).suffix in (".c", ".h", ".py", ".pyi", ".toml", ".sh", ".yml")
    for number, line in enumerate(text.split("\n"), 1):
        if code and "\t" in line:
            found.append(f"{name}:{number}: tab")
        if (code or name.endswith(".md")) and line != line.rstrip():
            found.append(f"{name}:{number}: trailing space")
        found += [f"{name}:{number}: {word!r}" for word in FORBIDDEN if re.search(word, line)]
        if name.endswith((".c", ".h")):
            found += [f"{name}:{number}: {why}" for word, why in FORBIDDEN_C.items() if re.search(word, line)]
    if code and text and not text.endswith("\n"):
        found.append(f"{name}: no newline at the end")
    return found


# A comment, a string or a character of C: what is inside of them is no code.
C_TEXT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/\*.*?\*/|//[^\n]*', re.DOTALL)
FALLIBLE = re.compile(
    r"^(?:static )?(?:inline )?gg_status *\(?(\w+)\)?\([^{};]*\)\s*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)


RETURNS = re.compile(r"\breturn\b|\bGG_\w*(TRY|PD)\w*(?<!_CLEANUP)\(|\bTRY_OFFERED\(")


def leaks(name: str, text: str) -> list[str]:
    """The fallible functions that return past their `cleanup`, and those with one that frees nothing."""
    code = C_TEXT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    found = []
    for function in FALLIBLE.finditer(code):
        body = function.group(2)
        before, label, after = body.partition("\ncleanup:")
        for bad in RETURNS.finditer(before if label else ""):
            line = code[: function.start(2) + bad.start()].count("\n") + 1
            found.append(f"{name}:{line}: {function.group(1)} returns past `cleanup`; GG_TRY_CLEANUP, GG_FAIL_CLEANUP")
        if label and after.strip() == "return status;":
            found.append(f"{name}: {function.group(1)} cleans nothing up at `cleanup`; GG_TRY returns")
    return found


def test_what_a_function_owns_is_freed():
    found = []
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        found += leaks(path.relative_to(ROOT).as_posix(), path.read_text())
    assert not found, "\n".join(found)


def test_leaks_are_seen():
    freed = "    gg_free(a);\n    return status;\n}\n"
    early = 'gg_status f(int *a) {\n    if (a) return gg_fail(1, "a; }");\ncleanup:\n' + freed
    tried = "gg_status (g)(int *a) {\n    GG_TRY_CLEANUP(h(a));\n    GG_TRY_MPI(MPI_Test, a);\ncleanup:\n" + freed
    nothing = "gg_status f(int a) {\n    GG_TRY_CLEANUP(g(a));\ncleanup:\n    return status;\n}\n"
    good = 'gg_status f(int a) {\n    if (!a) return GG_OK;\n    GG_TRY(g(a));\n    return gg_fail(1, "a");\n}\n'
    other = early.replace("gg_status f", "static PyObject *f")
    assert [line.split(":")[1] for line in leaks("x.c", early + tried)] == ["2", "9"]
    assert len(leaks("x.c", nothing)) == 1 and not leaks("x.c", good + other)


def test_text():
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += faults(path.relative_to(ROOT).as_posix(), text)
    assert not found, "\n".join(found)


def test_faults_are_seen():
    text = "int a; \n\tint b;\n// see /wo" + "rk/x\ngg_alloc(8, 0, (void **)&a);\nlast"
    assert len(faults("x.c", text)) == 5
