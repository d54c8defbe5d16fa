#!/bin/bash
# What only a machine with an NVIDIA GPU shows, in one command, in under 10 minutes: tests/cuda/on_gpu.sh [folder]
#
# 1. Builds, and says what there is.
# 2. Side by side: the whole suite with the GPU as the default device; networks and strategies beside the CPU; training
#    curves; two ranks on one GPU through MPI; compute-sanitizer's memcheck and racecheck. Meanwhile torch.compile fills
#    its cache.
# 3. One after the other, with nothing beside: what the exchange of two ranks on one GPU costs, and a step of each network
#    beside PyTorch's, where it is installed.
#
# Results lie in the folder (default: build/on_gpu), one file a part, those of the suite in suite/, the measurements in
# steps.jsonl and exchange.jsonl, a timeline in trace.json. The last lines say which parts failed, and which floors are
# missed. Needs CUDA 13 with nvcc, driver 580 or newer, cuDNN 9 and cuBLASLt 13 (pip install 'gossipgrad[cuda]');
# compute-sanitizer is of the CUDA toolkit. A rough guide: 16 cores. Settings by the environment:
#   PYTHON=python3          the interpreter
#   PIP_ARGS="..."          without a network: "--no-index --find-links DIR"
#   BUILD=0                 use what is built
#   SECONDS_IN_ALL=580      parts that have not begun by then are left out, others are ended
#   JOBS=N                  files of tests at a time; default: half of the cores
#   SMALL=1                 one network a part, to try this script
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:-build/on_gpu}")
rm -rf "$out/suite" "$out"/*.log "$out/results"
mkdir -p "$out/suite"
python=${PYTHON:-python3}
all=${SECONDS_IN_ALL:-580}
small=${SMALL:-0}
jobs=${JOBS:-$(($(nproc) > 2 ? $(nproc) / 2 : 1))}
SECONDS=0

part() { # part NAME SECONDS COMMAND...
    local name=$1 most=$2 begin=$SECONDS code=125
    shift 2
    [ "$most" -le $((all - SECONDS)) ] || most=$((all - SECONDS))
    if [ "$most" -gt 0 ]; then
        timeout -k 10 "$most" "$@" >"$out/$name.log" 2>&1
        code=$?
    fi
    [ $code = 0 ] || echo "$name ($([ $code = 124 ] && echo "ended after $most s" || ([ $code = 125 ] && echo "no time left" || echo $code)))" >>"$out/results"
    echo "$name: $([ $code = 0 ] && echo passed || echo "FAILED ($code)") in $((SECONDS - begin)) s; $(tail -1 "$out/$name.log" 2>/dev/null)"
}

# Files of tests that have nothing to do with the device, or bring their own.
other='test_(c_programs|cuda_.*|layering|lint|operations|packaging|readme|strict.*|torch.*|wire|notebook|loader.*|launch)\.py'
suite() {
    local files
    if [ "$small" = 1 ]; then files=tests/test_losses.py; else files=$(ls -S tests/test_*.py | grep -vE "$other"); fi
    # shellcheck disable=SC2016
    echo "$files" | xargs -P "$jobs" -I{} bash -c \
        'log=$0/suite/$(basename {} .py).log; timeout -k 10 150 $1 -m pytest -q -rfE --tb=short --device cuda {} >$log 2>&1
        code=$?; [ $code = 5 ] && code=0; echo "$code {}: $(tail -1 $log)" >>$0/suite/summary' "$out" "$python"
    local failed
    failed=$(grep -c -v '^0 ' "$out/suite/summary")
    grep -v '^0 ' "$out/suite/summary"
    echo "$failed of $(wc -l <"$out/suite/summary") files of tests failed: suite/summary"
    [ "$failed" = 0 ]
}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
sanitize() { # sanitize TOOL NETWORK
    "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all "$python" tests/cuda/one_step.py "$2" cuda 2
}
exchange() { # NoExchange over GossipGraD: the floor is 0.97
    local network=resnet50 batch=64
    [ "$small" = 1 ] && network=lenet batch=8
    "$python" -m gossipgrad run -n 2 bench --model $network --batch-size $batch --device cuda --precision fast \
        --exchange --steps 15 --warmup 5 --blocks 3 >"$out/exchange.jsonl" &&
        "$python" -c 'import json, sys; r = json.loads(open(sys.argv[1]).read().splitlines()[-1])
good = r["ratio"] >= 0.97
print("two ranks on one GPU,", r["model"], "NoExchange over GossipGraD:", r["ratio"], "met" if good else "missed")
raise SystemExit(not good)' "$out/exchange.jsonl"
}
steps() { # steps ROUNDS FILE NETWORKS... : with the type that each has its floor in
    local rounds=$1 file=$2 name dtype
    shift 2
    for name in "$@"; do
        case $name in resnet50 | googlenet | vgg16) dtype=bfloat16 ;; *) dtype=float32 ;; esac
        "$python" benchmarks/step_vs_peers.py --device cuda --networks "$name" --dtype $dtype --rounds "$rounds" \
            --json "$file" | tail -n +2 || return 1
    done
}
measured() {
    steps 3 "$out/steps.jsonl" "$@" && ! grep -q missed "$out/steps.log"
}
timeline() { # a trace with rows of the GPU
    "$python" -m gossipgrad train --dataset synthetic --model lenet --device cuda --epochs 1 --lr 0.001 --quiet \
        --trace "$out/trace.json"
}
export -f suite sanitize exchange steps measured timeline
export out python other small jobs sanitizer

if [ "${BUILD:-1}" = 1 ]; then
    # shellcheck disable=SC2086
    part build 200 env GOSSIPGRAD_CUDA=on $python -m pip install --no-build-isolation ${PIP_ARGS-} -e '.[test]'
fi
part info 30 $python -m gossipgrad info
if ! $python -c 'from gossipgrad import environment as e; raise SystemExit("cuda" not in e.devices()["devices"])'; then
    cat "$out/info.log"
    echo "no GPU can be used here: nothing else is run"
    exit 1
fi
nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true

networks=(resnet50 resnet20 lenet char_lstm googlenet vgg16)
of_sanitizer=(convolutions gpt lstm)
curve=(120) parity=()
[ "$small" = 1 ] && networks=(lenet) of_sanitizer=(mlp) curve=(3 lenet) parity=(-k mlp)
part suite 230 bash -c suite &
GOSSIPGRAD_TEST_GPU=1 part parity 230 $python -m pytest -q tests/test_cuda_training.py tests/test_cuda_library.py \
    "${parity[@]}" &
part curves 200 $python tests/cuda/curves.py cuda "${curve[@]}" &
part two_ranks 90 $python -m gossipgrad run -n 2 tests/cuda/one_step.py convolutions cuda 3 mpi &
part timeline 90 bash -c timeline &
if [ -x "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        (for network in "${of_sanitizer[@]}"; do part "$tool-$network" 110 bash -c "sanitize $tool $network"; done) &
    done
else
    echo "sanitizers ($sanitizer is not there)" >>"$out/results"
fi
[ "$small" = 1 ] || timeout -k 10 220 bash -c "steps 1 /dev/null ${networks[*]}" >"$out/compiling.log" 2>&1 &
wait

part exchange 60 bash -c exchange
part steps 230 bash -c "measured ${networks[*]}"
cat "$out/exchange.log" "$out/steps.log" 2>/dev/null

if [ -s "$out/results" ]; then
    echo "failed, in $SECONDS s:"
    sed 's/^/  /' "$out/results"
    echo "see $out"
    exit 1
fi
echo "all passed in $SECONDS s; see $out"
