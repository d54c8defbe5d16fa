"""The work of `gossipgrad run` while mpiexec runs: pass signals on, report why the ranks ended, clean up.

mpiexec has a process group of its own. So the keys of a terminal (Ctrl-C, Ctrl-\\, Ctrl-Z) reach this process alone,
which then knows why the ranks ended. All signals are blocked and waited for, so no handler interrupts the code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from gossipgrad.errors import SAVED
from gossipgrad.launch import leftovers
from gossipgrad.launch.net_launcher import job_code

# prctl's
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

# Signal -> (message, seconds that the ranks have to end before they are killed)
ENDING: dict[int, tuple[str, float]] = {
    signal.SIGINT: ("interrupted", 10.0),
    signal.SIGTERM: ("terminated", 10.0),
    signal.SIGQUIT: ("quit", 1.0),
    signal.SIGHUP: ("ended, because the terminal was closed", 1.0),
}
# Seconds for a script whose ranks are sent SIGINT themselves: a handler of KeyboardInterrupt may save.
_TO_SAVE = 30.0
_LAST_OUTPUT = 10.0  # seconds for printed output to arrive after mpiexec has ended
# Seconds: between checks of mpiexec's processes, max life without any, and max time until the first.
_LOOK, _HUNG, _TO_START = 1.0, 5.0, 60.0
_SILENT = 5.0  # seconds of a start until it is reported; doubled each time
# Variable in a launcher's environment, for its ranks: the reporter of their end.
VARIABLE = "GOSSIPGRAD_SUPERVISED"
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
WAITED_FOR = {*ENDING, *_PASSED_ON, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT}


def _prctl(option: int, value: int) -> None:
    """Linux's prctl; its effects help if available, and nothing depends on them elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# ------------------------------------------------------------------------------------ processes


def parents() -> dict[int, int]:
    """The parent of each visible living process; zombies do not count."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(name)] = int(parent)
    return found


def descendants(of: int, parent_of: Mapping[int, int]) -> set[int]:
    """All processes that `of` started, directly or not."""
    found: set[int] = set()
    more = {of}
    while more:
        more = {pid for pid, parent in parent_of.items() if parent in more} - found
        found |= more
    return found


def has_children(process: int) -> bool:
    """True if it has living children."""
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                for child in file.read().split():
                    with contextlib.suppress(OSError), open(f"/proc/{child}/stat", errors="replace") as stat_:
                        if stat_.read().rpartition(")")[2].split()[0] not in "ZX":
                            return True
        return False
    except OSError:  # a kernel without these lists
        return process in parents().values()


def _rank_of(process: int) -> bytes:
    """The launcher's words in the initial environment of a process; b"": it is no rank."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        found = [
            one
            for one in file.read().split(b"\0")
            if one.startswith((b"PMIX_RANK=", b"PMI_RANK=", b"GOSSIPGRAD_NET_RANK="))
        ]
        return b"".join(found)
    return b""


def ranks_of(launcher: int, parent_of: Mapping[int, int]) -> set[int]:
    """For each rank that mpiexec has started on this host the first process that is no shell."""
    below = descendants(launcher, parent_of)
    rank = {pid: _rank_of(pid) for pid in below}
    found: set[int] = set()
    for pid in below:
        if rank[pid] and rank.get(parent_of[pid]) != rank[pid]:
            found |= _behind_shells(pid, parent_of)
    return found


def _behind_shells(pid: int, parent_of: Mapping[int, int]) -> set[int]:
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return set()
    if name not in ("sh", "bash", "dash", "zsh", "ksh", "busybox", "env", "time"):
        return {pid}
    return {one for child, parent in parent_of.items() if parent == pid for one in _behind_shells(child, parent_of)}


def have_loaded(pids: Iterable[int]) -> int:
    """The number of these processes that have loaded the compiled core."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
            count += b"/gossipgrad/_core." in file.read()
    return count


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _may_be_full(descriptor: int) -> bool:
    """True for a file, or a device that is no terminal. A pipe without a reader ends the launcher by a signal."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor))


def _is_full(descriptor: int) -> bool:
    """True if a write would wait for the reader."""
    with contextlib.suppress(OSError, ValueError):
        return not select.select([], [descriptor], [], 0)[1]
    return False


# ------------------------------------------------------------------------------------ the supervisor


class Supervisor:
    """Runs a command, mpiexec, to its end.

    Output into a file goes through this process, because mpiexec does not report failed writes.

    forwards_stop: the command stops its ranks on SIGTSTP, as Open MPI's does.
    script: the ranks run a script, which may catch KeyboardInterrupt.
    saves: SIGTERM and SIGUSR1 let the ranks save and end by themselves; they are sent SIGUSR1 for both.
    many: ranks on this host, if they share its cores with many others; 0: their start is not reported.
    waits: the command may run without ranks, as an agent that waits for a coordinator.
    """

    def __init__(
        self,
        command: list[str],
        environ: Mapping[str, str],
        forwards_stop: bool,
        script: bool = False,
        saves: bool = False,
        many: int = 0,
        waits: bool = False,
    ) -> None:
        self.command, self.environ, self.forwards_stop = command, {**environ, VARIABLE: "1"}, forwards_stop
        self.script, self.saves = script, saves
        self.ending: int | None = None  # the signal that ends the ranks
        self.deadline: float | None = None
        self.output: threading.Thread | None = None  # writes the ranks' output, if this process does
        self.unwritten = False  # True if output was lost
        self.saving = False  # True if the ranks were asked to save
        self.hung = False  # True if mpiexec did not end after its ranks
        self._alone: float | None = None  # start of its time without processes
        self._had = False  # True if it has had some
        self._many, self._speak_at = many, _SILENT
        self._waits = waits

    def run(self, stdin: bool = False, last: Callable[[], str] = str) -> int:
        """The exit code: the command's, or 128 + the number of the signal that ended it; 1 if output was lost.

        stdin: the ranks' launcher reads this process's standard input. last: text to add when a signal ends the run,
        such as the last checkpoint.
        """
        ignored = {number for number in WAITED_FOR if signal.getsignal(number) is signal.SIG_IGN}
        signal.signal(signal.SIGCHLD, lambda *_: None)  # if it were ignored, waiting for children would fail
        before: set[int] = {*signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)}
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # the ranks of a killed launcher become children of this process
        try:
            self.process = self._start(stdin, before)
            code = self._wait(WAITED_FOR - ignored | {signal.SIGCHLD})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.ending is not None or code < 0:
            self._kill()  # processes that outlived it
        if self.output is not None:
            self.output.join(_LAST_OUTPUT)
        if self.ending is not None:
            self._say(f"{ENDING[self.ending][0]}{last()}")
            return 128 + self.ending
        if self.hung:
            self._say(
                f"the ranks have ended, but the launcher had not {_HUNG:g} s later, so it was ended; "
                "the exit codes of the ranks are not known"
            )
            return 1
        if self.saving and code == SAVED:
            self._say(f"stopped by a signal, to be resumed (exit code {SAVED}){last()}")
            return code
        if code < 0 and -code != signal.SIGPIPE:
            self._say(f"the launcher was ended by signal {-code} ({signal.Signals(-code).name}); so were the ranks")
        if code == 0 and self.unwritten:
            return 1
        return job_code(code) if code else 0

    def _start(self, stdin: bool, mask: set[int]) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # mpiexec ends with a killed supervisor
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if os.getppid() != parent:
                os._exit(1)

        source = subprocess.DEVNULL
        relayed = stdin and os.isatty(0)
        if stdin:
            source = subprocess.PIPE if relayed else 0
        process = subprocess.Popen(
            self.command,
            env=self.environ,
            stdin=source,
            stdout=subprocess.PIPE if _may_be_full(1) else None,
            preexec_fn=prepare,
            bufsize=0,
        )
        if process.stdout is not None:
            self.output = threading.Thread(target=self._write_output, args=(process,), daemon=True)
            self.output.start()
        if relayed:  # only the group of this process may read from the terminal
            threading.Thread(target=self._relay, args=(process,), daemon=True).start()
        return process

    def _relay(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            while text := os.read(0, 65536):
                process.stdin.write(text)
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _write_output(self, process: subprocess.Popen[bytes]) -> None:
        """Pass output on. If it cannot be written the ranks continue: their training is worth more than their
        output."""
        assert process.stdout is not None
        while text := process.stdout.read(65536):
            while text and not self.unwritten:
                try:
                    text = text[os.write(1, text) :]
                except OSError as error:
                    self.unwritten = True
                    self._say(f"error: standard output: {error.strerror}; the ranks go on, what they print is lost")

    def _wait(self, signals: set[int]) -> int:
        actions: dict[int, Callable[[], None]] = {signal.SIGTSTP: self._stop, signal.SIGCONT: self._go_on}
        self._begin = time.monotonic()
        while (code := self.process.poll()) is None:
            found = signal.sigtimedwait(signals, _LOOK)
            number = None if found is None else found.si_signo
            if number in ENDING:
                self._end(number)
            elif number in _PASSED_ON:
                self._pass_on(number)
            elif number in actions:
                actions[number]()
            elif number is None:
                self._look(time.monotonic())
        return code

    def _look(self, now: float) -> None:
        """End processes out of time: ranks after a signal, and mpiexec after its ranks, because Open MPI may hang."""
        if self.deadline is not None:
            if now >= self.deadline:
                self._kill()
        elif has_children(self.process.pid):
            self._had, self._alone = True, None
            self._say_of_start(now - self._begin)
        elif not self._waits and (self._had or now - self._begin > _TO_START):
            self._alone = now if self._alone is None or _is_full(1) or _is_full(2) else self._alone
            if now - self._alone >= _HUNG:
                self.hung = True
                self._kill()

    def _say_of_start(self, seconds: float) -> None:
        """Report the cause of a slow start of many ranks, after `seconds`, and its end."""
        if not self._many or seconds < self._speak_at:
            return
        loaded = have_loaded(ranks_of(self.process.pid, parents()))
        if loaded < self._many:
            self._say(
                f"after {seconds:.0f} s {loaded} of {self._many} ranks have loaded gossipgrad; all start at the same "
                "time, and MPI begins when the last one has"
            )
            self._speak_at *= 2
            return
        self._say(f"all {loaded} ranks have loaded gossipgrad, {seconds:.0f} s after the start; MPI connects them")
        self._many = 0

    def _pass_on(self, number: int) -> None:
        self.saving |= self.saves and number == signal.SIGUSR1
        _send([self.process.pid], number)

    def _end(self, number: int) -> None:
        if self.saves and number == signal.SIGTERM and not self.saving:
            self._pass_on(signal.SIGUSR1)
            return
        if self.ending is not None:  # asked for a second time
            self._kill()
            return
        self.ending, self.deadline = number, time.monotonic() + ENDING[number][1]
        ranks = ranks_of(self.process.pid, parents()) if self.script and number == signal.SIGINT else set()
        if ranks:
            self._say(f"interrupted: the ranks have {_TO_SAVE:g} s to end; a second time ends them at once")
            self.deadline = time.monotonic() + _TO_SAVE
            _send(ranks, signal.SIGINT)
        else:
            _send([self.process.pid], signal.SIGTERM)
        _send([self.process.pid], signal.SIGCONT)

    def _kill(self) -> None:
        """End mpiexec and all processes of it and its ranks on this host. Daemons on others end when it does."""
        left = descendants(os.getpid(), parents())
        files = leftovers.of_processes(left)
        for _ in range(50):
            if not left:
                break
            _send(left, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.02)
            left = descendants(os.getpid(), parents())
        leftovers.remove(files)
        self.deadline = None

    def _stop(self) -> None:
        """Ctrl-Z: the ranks, mpiexec and this process stop; the shell's fg or bg continues them."""
        if self.forwards_stop:
            _send([self.process.pid], signal.SIGTSTP)
            time.sleep(0.2)  # time for passing it on to the ranks; its end is unknown
        _send([self.process.pid], signal.SIGSTOP)
        # The signal's own action; nothing happens if no shell could continue this process.
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        self._go_on()

    def _go_on(self) -> None:
        _send([self.process.pid], signal.SIGCONT)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the terminal may be gone
            # A progress bar, or the terminal's ^C, may stand on the line.
            print(f"{chr(10) if sys.stderr.isatty() else ''}gossipgrad: {text}", file=sys.stderr, flush=True)
