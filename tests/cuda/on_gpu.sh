#!/bin/bash
# What only a machine with an NVIDIA GPU shows, in one command, in under 10 minutes: tests/cuda/on_gpu.sh [folder]
#
# 1. Builds, and says what there is.
# 2. Side by side, for half of the time, while torch.compile fills its cache: compute-sanitizer's memcheck, and its
#    racecheck of the own kernels; two ranks on one GPU through MPI; networks and strategies beside the CPU; training
#    curves; the whole suite with the GPU as the default device.
# 3. With nothing beside: what the exchange of two ranks on one GPU costs, and a step of each network beside PyTorch's,
#    where it is installed.
#
# Results lie in the folder (default: build/on_gpu), one file a part, those of the suite in suite/, the measurements in
# steps.jsonl and exchange.jsonl, a timeline in trace.json. The last lines say which parts were not run for want of a
# program, which failed, and which floors are missed. Needs CUDA 13 with nvcc, driver 580 or newer, cuDNN 9 and
# cuBLASLt 13 (pip install 'gossipgrad[cuda]'); compute-sanitizer is of the CUDA toolkit. A rough guide: 16 cores.
# Settings by the environment:
#   PYTHON=python3          the interpreter
#   PIP_ARGS="..."          without a network: "--no-index --find-links DIR"
#   BUILD=0                 use what is built
#   SECONDS_IN_ALL=580      parts that have not begun by then are left out, others are ended
#   CHECK_SECONDS=290       the same for the parts of 2; the rest of the time is for measuring
#   JOBS=N                  files of tests at a time; default: half of the cores
#   SMALL=1                 one network a part, to try this script
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:-build/on_gpu}")
rm -rf "$out/suite" "$out"/*.log "$out/results" "$out/not_run"
mkdir -p "$out/suite"
python=${PYTHON:-python3}
all=${SECONDS_IN_ALL:-580}
small=${SMALL:-0}
jobs=${JOBS:-$(($(nproc) > 2 ? $(nproc) / 2 : 1))}
SECONDS=0
check=${CHECK_SECONDS:-$((all / 2))}
deadline=$check # of the parts, in seconds since the begin of this script

part() { # part NAME SECONDS COMMAND... : of so many seconds at most, and not beyond the deadline
    local name=$1 most=$2 begin=$SECONDS code=125 why
    shift 2
    [ "$most" -le $((deadline - SECONDS)) ] || most=$((deadline - SECONDS))
    if [ "$most" -gt 0 ]; then
        timeout -k 10 "$most" "$@" >"$out/$name.log" 2>&1 </dev/null
        code=$?
    fi
    why=$code
    case $code in 124) why="ended after $most s" ;; 137) why="killed, after at most $most s" ;; 125) why="no time left" ;; esac
    [ $code = 0 ] || echo "$name ($why)" >>"$out/results"
    echo "$name: $([ $code = 0 ] && echo passed || echo "FAILED ($why)") in $((SECONDS - begin)) s; $(tail -1 "$out/$name.log" 2>/dev/null)"
}

# Files of tests that have nothing to do with the device, or bring their own.
other='test_(c_programs|cuda_.*|layering|lint|operations|packaging|readme|strict.*|torch.*|wire|notebook|loader.*|launch)\.py'
suite() { # --foreground: what is still running ends with the suite, as one group of processes
    local files failed ran
    if [ "$small" = 1 ]; then files=tests/test_losses.py; else files=$(ls -S tests/test_*.py | grep -vE "$other"); fi
    # shellcheck disable=SC2016
    echo "$files" | xargs -P "$jobs" -I{} bash -c \
        'log=$0/suite/$(basename {} .py).log
        timeout --foreground -k 10 150 $1 -m pytest -q -rfE --tb=short --device cuda {} >$log 2>&1
        code=$?; [ $code = 5 ] && code=0; echo "$code {}: $(tail -1 $log)" >>$0/suite/summary' "$out" "$python"
    failed=$(grep -c -v '^0 ' "$out/suite/summary")
    ran=$(wc -l <"$out/suite/summary")
    grep -v '^0 ' "$out/suite/summary"
    echo "$failed of $ran files of tests failed: suite/summary"
    [ "$failed" = 0 ] && [ "$ran" = "$(echo "$files" | wc -l)" ]
}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
own_kernels() { # the length and the name of each, as they stand in mangled names
    local name
    grep -rhzoP '__global__\s+void\s+(__launch_bounds__\([^)]*\)\s*)?\K\w+(?=\()' csrc/cuda | tr '\0' '\n' | sort -u |
        while read -r name; do echo "${#name}$name"; done
}
sanitize() { # sanitize TOOL NETWORK; hazards within NVIDIA's libraries are not ours, nor calls that they expect to fail
    local name only=()
    [ "$1" = racecheck ] && for name in $(own_kernels); do only+=(--kernel-name "kernel_substring=$name"); done
    "$sanitizer" --tool "$1" "${only[@]}" --report-api-errors no --error-exitcode 9 --target-processes all \
        "$python" tests/cuda/one_step.py "$2" cuda 2
}
exchange() { # NoExchange over GossipGraD, in TF32 and in bfloat16: the floor is 0.97
    local network=resnet50 batch=64 dtype
    [ "$small" = 1 ] && network=lenet batch=8
    for dtype in float32 bfloat16; do
        "$python" -m gossipgrad run -n 2 bench --model $network --batch-size $batch --device cuda --precision fast \
            --dtype $dtype --exchange --steps 15 --warmup 5 --blocks 3 | tail -n 1 >>"$out/exchange.jsonl"
    done
    "$python" -c 'import json, sys
found = [json.loads(line) for line in open(sys.argv[1])]
for r in found:
    text = "two ranks on one GPU, {model} {dtype}: {ms_no_exchange} ms, {ms_strategy} with GossipGraD, {ratio}"
    print(text.format(**r), "met" if r["ratio"] >= 0.97 else "missed")
raise SystemExit(len(found) < 2 or min(r["ratio"] for r in found) < 0.97)' "$out/exchange.jsonl"
}
dtype_of() { # dtype_of NETWORK: the type that it has its floor in
    case $1 in resnet50 | googlenet | vgg16) echo bfloat16 ;; *) echo float32 ;; esac
}
compile() { # compile NETWORKS... : fills the cache of torch.compile, without a measurement
    local name
    for name in "$@"; do echo "$name $(dtype_of "$name")"; done | xargs -P 2 -L 1 bash -c \
        '"$python" benchmarks/step_vs_peers.py --contestant "torch compile graphs" --device cuda --threads 4 \
            --precision fast --networks "$0" --dtype "$1" </dev/null'
}
steps() { # steps NETWORKS...
    set -o pipefail
    local name code=0 before
    touch "$out/steps.jsonl"
    before=$(wc -l <"$out/steps.jsonl")
    for name in "$@"; do
        "$python" benchmarks/step_vs_peers.py --device cuda --networks "$name" --dtype "$(dtype_of "$name")" \
            --peers torch "torch graphs" "torch compile graphs" --rounds 3 --json "$out/steps.jsonl" |
            tail -n +2 || code=1
    done
    "$python" -c 'import json, sys
path, before, peers, *networks = sys.argv[1:]
lines = map(json.loads, open(path).read().splitlines()[int(before):])
found = {line["network"]: line for line in lines}
failed = [f"{name} was not measured" for name in networks if name not in found]
if peers == "yes":
    failed += [f"{name} has no ratio" for name, line in found.items() if line["ratio"] is None]
    failed += [f"{name} missed its floor" for name, line in found.items() if (line["ratio"] or 9) < line["floor"]]
print(", ".join(failed) or "measured: " + ", ".join(found) + ("; all floors met" if peers == "yes" else ""))
raise SystemExit(bool(failed))' "$out/steps.jsonl" "$before" "$peers" "$@" && return $code
}
timeline() { # a trace with rows of the GPU
    "$python" -m gossipgrad train --dataset synthetic --model lenet --device cuda --epochs 1 --lr 0.001 --quiet \
        --trace "$out/trace.json"
}
export -f suite own_kernels sanitize exchange dtype_of compile steps timeline

networks=(resnet50 resnet20 lenet char_lstm googlenet vgg16)
of_sanitizer=(convolutions gpt lstm)
curve=(120) parity=()
[ "$small" = 1 ] && networks=(lenet) of_sanitizer=(mlp) curve=(3 lenet) parity=(-k mlp)
peers=yes
if ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
    peers=no
    echo "steps beside PyTorch's (PyTorch for CUDA is not installed)" >>"$out/not_run"
fi
export out python other small jobs sanitizer peers

# The peers need nothing that is built. What they compile is in their cache when they are measured.
compiling=
if [ $peers = yes ]; then
    timeout -k 10 "$all" bash -c "compile ${networks[*]}" >"$out/compiling.log" 2>&1 &
    compiling=$!
fi
if [ "${BUILD:-1}" = 1 ]; then
    # shellcheck disable=SC2086
    part build 200 env GOSSIPGRAD_CUDA=on "$python" -m pip install --no-build-isolation ${PIP_ARGS-} -e '.[test]'
fi
part info 30 "$python" -m gossipgrad info
if ! "$python" -c 'from gossipgrad.launch import environment as e; raise SystemExit("cuda" not in e.devices()["devices"])'; then
    cat "$out/info.log"
    echo "no GPU can be used here: nothing else is run"
    [ -z "$compiling" ] || kill "$compiling" 2>/dev/null
    exit 1
fi
nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true

# Algorithms are timed by what trains. On a GPU that many processes share, these times are not for the user's cache.
home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export GOSSIPGRAD_CACHE=${GOSSIPGRAD_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/gossipgrad} # data sets stay there
user_cache=${XDG_CACHE_HOME-}
own_cache=$(mktemp -d)
export XDG_CACHE_HOME=$own_cache
trap 'rm -rf "$own_cache"' EXIT
part suite "$all" bash -c suite &
GOSSIPGRAD_TEST_GPU=1 part parity "$all" "$python" -m pytest -q tests/test_cuda_training.py tests/test_cuda_library.py \
    "${parity[@]}" &
part curves "$all" "$python" tests/cuda/curves.py cuda "${curve[@]}" &
part two_ranks 90 "$python" -m gossipgrad run -n 2 tests/cuda/one_step.py convolutions cuda 3 mpi &
part timeline 90 bash -c timeline &
if [ -x "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        for network in "${of_sanitizer[@]}"; do part "$tool-$network" 150 bash -c "sanitize $tool $network" & done
    done
else
    echo "memcheck and racecheck (compute-sanitizer is not installed)" >>"$out/not_run"
fi
running=$(jobs -pr | grep -vx "${compiling:-none}")
# shellcheck disable=SC2086
[ -z "$running" ] || wait $running

# What torch.compile has not done by now it does within the measurement.
XDG_CACHE_HOME=$user_cache
[ -n "$XDG_CACHE_HOME" ] || unset XDG_CACHE_HOME
deadline=$all
if [ -n "$compiling" ]; then
    kill "$compiling" 2>/dev/null
    wait "$compiling"
fi
part exchange 90 bash -c exchange
part steps "$all" bash -c "steps ${networks[*]}"

cat "$out/exchange.log" "$out/steps.log" 2>/dev/null
if [ -s "$out/not_run" ]; then
    echo "not run:"
    sed 's/^/  /' "$out/not_run"
fi
if [ -s "$out/results" ]; then
    echo "failed, in $SECONDS s:"
    sed 's/^/  /' "$out/results"
    echo "see $out"
    exit 1
fi
echo "all that was run passed, in $SECONDS s; see $out"
