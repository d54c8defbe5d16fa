#!/usr/bin/env bash
# The core on an aarch64 CPU, which this machine is not: tests/aarch64.sh [PROGRAM...]     (default: all that fit)
#
# Compiles the core with Debian's cross-compiler and warnings as errors, without oneDNN and CUDA, and runs C programs
# under qemu-user: NEON's kernels against the scalar ones, the exchange, trainings. MPI is compiled, not run. What is
# missing is installed by apt; where that fails, nothing is tested, which the last line says. It needs Python with the
# packages that setup.py needs ($PYTHON, default: python).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"

# Left out: oneDNN's programs, AMX's, and those that take minutes here. By name each runs.
slow='test_onednn|test_signals|test_packed_reduction|test_paired|test_plan|test_split|test_virtual'

packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
here() { command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64 && [ -e /usr/aarch64-linux-gnu/include/stdio.h ]; }
if ! here >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; } >"$scratch/apt" 2>&1 ||
        tail -n 3 "$scratch/apt"
fi
if ! here >/dev/null; then
    echo "aarch64: NOT TESTED: NEON and all else on aarch64; install apt-get's ${packages[*]}"
    exit 0
fi

step() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

step "aarch64: the core, cross-compiled"
launcher=$(case "${CC-}" in ccache\ *) echo "ccache " ;; esac)
env -u CFLAGS -u GOSSIPGRAD_ISAS CC="${launcher}aarch64-linux-gnu-gcc" AR=aarch64-linux-gnu-ar GOSSIPGRAD_WERROR=1 \
    GOSSIPGRAD_BUILD=release GOSSIPGRAD_CUDA=off ONEDNN_ROOT=none "$python" setup.py archive >"$scratch/log" 2>&1 ||
    { tail -n 40 "$scratch/log"; exit 1; }
objects=$(tail -n 1 "$scratch/log")
# MPI's symbols, for the linker: no program here calls them.
aarch64-linux-gnu-nm -u "$objects/libgossipgrad.a" |
    sed -nE 's/^ +U ((O?MPI|MPIX|PMPI|ompi)_\w+)$/char \1[64];/p' | sort -u >"$scratch/no_mpi.c"
aarch64-linux-gnu-gcc -c "$scratch/no_mpi.c" -o "$scratch/no_mpi.o"
aarch64-linux-gnu-ar rs "$objects/libgossipgrad.a" "$scratch/no_mpi.o" 2>"$scratch/log"

step "aarch64: C programs"
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive GOSSIPGRAD_TUNE=0 GOSSIPGRAD_BACKEND=native XDG_CACHE_HOME=$scratch/cache
unset GOSSIPGRAD_ISA GOSSIPGRAD_PAIRED
for source in tests/c/test_*.c; do
    name=$(basename "$source" .c)
    if [ $# -gt 0 ]; then
        case " $* " in *" $name "*) ;; *) continue ;; esac
    elif [[ $name =~ ^($slow)$ ]]; then
        continue
    fi
    # Ranks of MPI need its library for aarch64.
    ! grep -q 'mpi ranks: ' "$source" || continue
    "$python" tests/cbuild.py "$objects" "$scratch" "$name" >/dev/null
    arguments=()
    [ "$name" != test_gemm ] || arguments=(600000) # multiply-adds of its largest case
    code=0
    timeout -k 10 600 qemu-aarch64 -L /usr/aarch64-linux-gnu "$scratch/$name" "${arguments[@]}" \
        >"$scratch/log" 2>&1 </dev/null || code=$?
    if [ "$code" -ne 0 ]; then
        tail -n 40 "$scratch/log"
        echo "aarch64: failed ($code): $name"
        exit 1
    fi
    rm "$scratch/$name"
    step "$name"
done
step "aarch64: clean"
