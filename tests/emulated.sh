#!/usr/bin/env bash
# The core on CPUs that this machine is not: tests/emulated.sh [Nehalem] [Haswell] [EPYC-Milan]     (all by default)
#
# Runs C programs, a training and tests of kernels on CPUs that qemu-user emulates: Nehalem has scalar kernels alone,
# Haswell and EPYC-Milan have AVX2 (qemu 7.2 knows no AVX-512). It needs a core that was built in place and, in the
# Python that runs it ($PYTHON, default: python), pytest. Where qemu-user is missing it is installed by apt; where that
# fails, nothing is tested, which the last line says.
#
# Left out: the programs that take minutes, and oneDNN's tables, since qemu 7.2 computes AVX2's tanh of oneDNN wrongly.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"

[ $# -gt 0 ] || set -- Nehalem Haswell EPYC-Milan
for cpu in "$@"; do
    case $cpu in
    Nehalem | Haswell | EPYC-Milan) ;;
    *)
        echo "unknown CPU $cpu; allowed: Nehalem, Haswell, EPYC-Milan" >&2
        exit 2
        ;;
    esac
done

qemu=$(command -v qemu-x86_64 || true)
if [ -z "$qemu" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends qemu-user; } >"$scratch/apt" 2>&1 ||
        tail -n 3 "$scratch/apt"
    qemu=$(command -v qemu-x86_64 || true)
fi
if [ -z "$qemu" ] || [ "$(uname -m)" != x86_64 ]; then
    echo "emulated: NOT TESTED: CPUs below AVX-512; install qemu-user (apt-get install qemu-user) on an x86-64 machine"
    exit 0
fi

# NumPy's kernels are those of the CPU that is played, though a kind may be chosen for this machine.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive GOSSIPGRAD_TUNE=0 GOSSIPGRAD_BACKEND=native
export XDG_CACHE_HOME=$scratch/cache PYTHONDONTWRITEBYTECODE=1
unset GOSSIPGRAD_ISA GOSSIPGRAD_PAIRED

step() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

# What fails runs once more: a machine that stalls ends what waits.
emulated() { # CPU, command...
    local cpu=$1 code attempt
    shift
    for attempt in 1 2; do
        code=0
        timeout -k 10 600 env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$qemu" -cpu "$cpu" "$@" >"$scratch/log" 2>"$scratch/errors" </dev/null || code=$?
        grep -v "TCG doesn't support" "$scratch/errors" >>"$scratch/log" || true
        [ "$code" -ne 0 ] || return 0
        [ "$attempt" -eq 2 ] || printf 'run again, since it ended with %s: %s\n' "$code" "$*"
    done
    tail -n 40 "$scratch/log"
    printf 'emulated: failed (%s) on %s: %s\n' "$code" "$cpu" "$*"
    exit 1
}

objects=$("$python" -c 'from gossipgrad.launch import preload; print(preload.build_facts().OBJECTS)')
"$python" tests/cbuild.py "$objects" "$scratch/c" >"$scratch/programs"

training='
import sys
import numpy as np
import gossipgrad as gg

assert gg._core.info()["isa"] == sys.argv[1], gg._core.info()
rng = np.random.default_rng(1)
x = rng.normal(size=(256, 1, 10, 10)).astype(np.float32)
y = (x[:, 0, :5].sum((1, 2)) > x[:, 0, 5:].sum((1, 2))).astype(np.int64)
layers = [gg.Conv2d(20, 5), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(50), gg.ReLU(), gg.Linear(2)]
net = gg.Sequential(layers, input=(1, 10, 10))
trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.02, momentum=0.9), comm=gg.VirtualCluster(2), seed=1)
before = trainer.evaluate((x, y))["loss"]
trainer.fit(x, y, epochs=6, batch_size=16)
assert trainer.evaluate((x, y))["loss"] < 0.85 * before, (before, trainer.evaluate((x, y)))
'

for cpu in "$@"; do
    isa=avx2
    [ "$cpu" != Nehalem ] || isa=scalar
    step "$cpu: C programs"
    while read -r ranks program; do
        name=$(basename "$program")
        [ "$ranks" -eq 0 ] || continue
        case $name in
        test_onednn | test_signals | test_packed_reduction | test_paired | test_plan | test_split | test_virtual) continue ;;
        esac
        if [ "$cpu" = EPYC-Milan ]; then # as Haswell, but for AMD's choices
            case $name in test_base | test_choose | test_gemm | test_kernels) ;; *) continue ;; esac
        fi
        if [ "$name" = test_gemm ]; then
            emulated "$cpu" "$program" 600000 # multiply-adds of its largest case
        else
            emulated "$cpu" "$program"
        fi
    done <"$scratch/programs"

    step "$cpu: a training"
    emulated "$cpu" "$python" -c "$training" "$isa"

    [ "$cpu" != EPYC-Milan ] || continue
    step "$cpu: tests of kernels"
    emulated "$cpu" "$python" -m pytest -q -x -n 0 -p no:cacheprovider -m "not full" -k "not onednn" \
        tests/test_operations.py tests/test_arena_kernels.py tests/test_loss_kernels.py tests/test_compression_codec.py
    tail -n 1 "$scratch/log"
done
step "emulated: clean"
