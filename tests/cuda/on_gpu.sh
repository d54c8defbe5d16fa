#!/bin/bash
# What only a machine with an NVIDIA GPU shows, in one command, in under 10 minutes: tests/cuda/on_gpu.sh [folder]
#
# Builds, runs the suite's networks and strategies with device="cuda" beside the CPU, compute-sanitizer's memcheck and
# racecheck, and the benchmarks. Results lie in the folder (default: build/on_gpu), one file a part; the last lines say
# which parts failed. Needs CUDA 13 with nvcc, driver 580 or newer, cuDNN 9 and cuBLASLt 13 (pip install
# 'gossipgrad[cuda]'); compute-sanitizer is of the CUDA toolkit. Without network: PIP_ARGS="--no-index --find-links DIR".
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:-build/on_gpu}")
mkdir -p "$out"
failed=()
python=${PYTHON:-python3}

part() { # part NAME SECONDS COMMAND...
    local name=$1 most=$2 begin=$SECONDS
    shift 2
    echo "== $name"
    timeout -k 10 "$most" "$@" >"$out/$name.log" 2>&1
    local code=$?
    [ $code = 0 ] || failed+=("$name ($code)")
    echo "   $([ $code = 0 ] && echo passed || echo "FAILED ($code)") in $((SECONDS - begin)) s; $(tail -1 "$out/$name.log")"
}

# shellcheck disable=SC2086
part build 240 env GOSSIPGRAD_CUDA=on $python -m pip install --no-build-isolation ${PIP_ARGS-} -e '.[test]'
part info 30 $python -m gossipgrad info
if ! $python -c 'from gossipgrad import environment as e; raise SystemExit("cuda" not in e.devices()["devices"])'; then
    cat "$out/info.log"
    echo "no GPU can be used here: nothing else is run"
    exit 1
fi
nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true

# Parity with the CPU per network and strategy, on the device itself in place of the stand-in.
export GOSSIPGRAD_TEST_GPU=1
part training 240 $python -m pytest -q tests/test_cuda_training.py tests/test_cuda_library.py
part one_rank_of_lenet 60 $python tests/cuda/one_step.py lenet cuda 20

# A few steps of networks that between them launch most kernels.
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
for tool in memcheck racecheck; do
    for network in convolutions gpt lstm; do
        part "$tool-$network" 120 "$sanitizer" --tool $tool --error-exitcode 9 --target-processes all \
            $python tests/cuda/one_step.py $network cuda 1
    done
done

# Two ranks on one GPU through MPI: messages are staged in pinned memory of the host.
part two_ranks 90 $python -m gossipgrad run -n 2 tests/cuda/one_step.py convolutions cuda 3 mpi

# Warm steps, seconds each; the peers are PyTorch's where it is installed.
for network in lenet resnet20 char_lstm; do
    part "bench-$network" 60 $python tests/cuda/one_step.py $network cuda 50 time
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; see $out"
    exit 1
fi
echo "all passed; see $out"
