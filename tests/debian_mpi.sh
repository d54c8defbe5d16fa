#!/bin/bash
# tests/test_mpi.py on Debian's MPICH and Open MPI: tests/debian_mpi.sh [mpich] [openmpi]     (both by default)
#
# Unpacks the packages into a folder, builds a copy of this tree against each, and runs the tests there; installs
# nothing. Wants Debian's apt-get with package lists, and a Python that can build and test ($PYTHON). $DEBIAN_MPI: a
# folder to keep between runs (default: a temporary one). $PYTEST_OPTIONS: further options. MPICH waits at full load, so
# its tests take half an hour where cores are fewer than ranks. Prints "debian_mpi: fine" at its end.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
kinds=("$@")
[ $# -gt 0 ] || kinds=(mpich openmpi)
if [ -n "${DEBIAN_MPI:-}" ]; then
    folder=$DEBIAN_MPI
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
folder=$(realpath "$folder")

# unpack ROOT PACKAGE...: unpacks the packages and their dependencies that this machine lacks
unpack() {
    local root=$1
    shift
    [ ! -e "$root/complete" ] || return 0
    mkdir -p "$root/packages" "$root/bin"
    (
        cd "$root/packages"
        apt-get install --simulate --no-install-recommends "$@" | sed -n 's/^Inst \([^ ]*\).*/\1/p' |
            xargs apt-get -q download
        for package in *.deb; do dpkg-deb --extract "$package" "$root"; done
    )
    touch "$root/complete"
}

# place ROOT KIND: writes ROOT/bin/mpiexec and ROOT/bin/mpicc, whose answers name files below ROOT
place() {
    cat >"$1/bin/mpicc" <<END
#!/bin/bash
said=\$("$1/usr/bin/mpicc.$2" "\$@") || exit
sed "s,-\([IL]\)/usr/,-\1$1/usr/,g" <<<"\$said"
END
    printf '#!/bin/bash\nexec "%s" "$@"\n' "$1/usr/bin/mpiexec.$2" >"$1/bin/mpiexec"
    chmod +x "$1/bin/mpicc" "$1/bin/mpiexec"
}

tree=$folder/tree
mkdir -p "$tree"
rm -rf "$tree/csrc" "$tree/gossipgrad" "$tree/tests"
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$tree"
for kind in "${kinds[@]}"; do
    root=$folder/$kind
    case $kind in
    mpich)
        unpack "$root" mpich libmpich-dev
        ;;
    openmpi)
        unpack "$root" openmpi-bin libopenmpi-dev
        export OPAL_PREFIX=$root/usr
        ;;
    *)
        echo "debian_mpi.sh: no $kind; allowed: mpich, openmpi" >&2
        exit 2
        ;;
    esac
    place "$root" "$kind"
    machine=$("$python" -c "import sysconfig; print(sysconfig.get_config_var('MULTIARCH'))")
    (
        cd "$tree"
        export PYTHONPATH=$tree LD_LIBRARY_PATH=$root/usr/lib/$machine:$root/lib/$machine
        MPICC=$root/bin/mpicc "$python" setup.py -q build_ext -i >"$folder/build" 2>&1 || {
            cat "$folder/build"
            exit 1
        }
        "$python" -m gossipgrad info | grep "mpi library"
        "$python" -m pytest -q -p no:cacheprovider ${PYTEST_OPTIONS:-} tests/test_mpi.py
    )
    echo "debian_mpi: $kind passes"
done
echo "debian_mpi: fine"
