#!/usr/bin/env bash
# The core under sanitizers: tests/sanitize.sh [asan] [tsan]     (both by default)
#
# Builds the variant into a folder of its own (the source tree's core stays as it is), runs the C programs of
# tests/c, and trains a little with two MPI ranks and with four virtual ranks, and in random configurations of the
# strategies in which ranks answer each other. asan also runs a sample of the Python tests, which has to call every
# function of the compiled core. Any report is an error.
# Wants setuptools, numpy, pytest and the wheels of the build in the Python that runs it ($PYTHON, default: python).
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl="${OMPI_MCA_btl-^ofi,uct}" OMPI_MCA_pml="${OMPI_MCA_pml-ob1}"
unset GOSSIPGRAD_WERROR GOSSIPGRAD_CUDA
bin=$("$python" -c 'import os, sys; print(os.path.dirname(sys.executable))')
mpiexec=$(PATH=$bin:$PATH command -v mpiexec)
train=(--dataset synthetic --epochs 2 --batch-size 50 --lr 0.005 --seed 1)
[ -n "${GOSSIPGRAD_SANITIZE_TRAIN-}" ] && read -r -a train <<<"$GOSSIPGRAD_SANITIZE_TRAIN"

step() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

# Run, show the end of what failed, and take any report for a failure whatever the return code. What fails without a
# report runs once more: a machine that stalls ends what waits.
guarded() {
    local log=$scratch/log code attempt
    for attempt in 1 2; do
        code=0
        timeout -k 10 "${LIMIT:-300}" "$@" >"$log" 2>&1 </dev/null || code=$? # mpiexec would eat the list of programs
        if grep -qE 'ERROR: AddressSanitizer|ERROR: LeakSanitizer|runtime error:|WARNING: ThreadSanitizer' "$log"; then
            code="a report, $code"
            break
        fi
        [ "$code" -ne 0 ] || return 0
        [ "$attempt" -eq 2 ] || printf 'run again, since it ended with %s: %s\n' "$code" "$*"
    done
    tail -n 80 "$log"
    printf 'failed (%s): %s\n' "$code" "$*"
    return 1
}

build() { # variant -> $scratch/$variant with the package; prints the object folder
    cd "$root"
    GOSSIPGRAD_BUILD=$1 "$python" setup.py -q build_py --build-lib "$scratch/$1" build_ext --build-lib "$scratch/$1" >&2
    "$python" -c 'import runpy, sys; print(runpy.run_path(sys.argv[1])["OBJECTS"])' "$scratch/$1/gossipgrad/_build.py"
}

programs() { # variant, object folder
    cd "$root"
    "$python" tests/cbuild.py "$2" "$scratch/$1-c" >"$scratch/$1-c.list"
    cd "$scratch"
    while read -r ranks program; do
        if [ "$1" = tsan ]; then # those that run threads of our own; OpenMP's are invisible to it, and kernels take minutes
            case $(basename "$program") in test_base | test_data | test_net | test_packed_reduction | test_replica | test_strict | test_virtual | test_view_pages | test_virtual_deaths | test_virtual_failures | test_mpi) ;; *) continue ;; esac
        fi
        step "$1: $(basename "$program")"
        if [ "$ranks" -eq 0 ]; then
            guarded "${under[@]}" "$program"
        else
            ASAN_OPTIONS=detect_leaks=0 guarded "$mpiexec" -n "$ranks" --bind-to none "${under[@]}" "$program"
        fi
    done <"$scratch/$1-c.list"
}

# A rank's wrapper: the sanitizer's libraries are loaded into the rank alone, never into mpiexec.
wrapper() { # path, preload list
    printf '#!/bin/sh\nexec %s env LD_PRELOAD=%s "$@"\n' "${under[*]}" "$2" >"$1"
    chmod +x "$1"
}

# Without the variant's folder Python would find the core of the source tree, and all would be clean.
is_variant() { # variant
    guarded "$scratch/$1-run" "$python" -c "import gossipgrad, gossipgrad._build as b
where = gossipgrad._core.__file__
assert b.VARIANT == '$1' and where.startswith('$scratch/$1/'), (b.VARIANT, where)"
}

trainings() { # variant
    cd "$scratch"
    export PYTHONPATH=$scratch/$1 PYTHONMALLOC=malloc
    is_variant "$1"
    local strategy
    for strategy in gossipgrad allreduce "gossipgrad --slices 3 --staleness 1 --final-mix"; do
        step "$1: two MPI ranks, $strategy"
        guarded "$mpiexec" -n 2 --bind-to none "$scratch/$1-run" "$python" -m gossipgrad train "${train[@]}" \
            --strategy $strategy --report "$scratch/mpi.json"
        step "$1: four virtual ranks, $strategy"
        guarded "$scratch/$1-run" "$python" -m gossipgrad train "${train[@]}" \
            --strategy $strategy --virtual-ranks 4 --report "$scratch/virtual.json"
    done
    step "$1: random configurations in which ranks answer each other"
    guarded "$scratch/$1-run" "$python" "$root/tests/random_configurations.py" --count 12 --first 1307 \
        --strategies pull-gossip,push-gossip,elastic-averaging,parameter-server
    unset PYTHONPATH PYTHONMALLOC
}

# A sample of the Python tests, 20 seconds of a core in all. tests/bindings.py fails where it calls a function of the core no
# longer: add a test that does. None of these starts another Python, which would find the core of the source tree.
# A report goes to file descriptor 2, which pytest must not capture: it would be lost with the process.
sample() {
    local names=$scratch/bindings tests=$root/tests
    mkdir "$names" "$scratch/files"
    cd "$scratch"
    export PYTHONPATH=$scratch/asan:$tests PYTHONMALLOC=malloc GOSSIPGRAD_BINDINGS=$names
    is_variant asan
    step "asan: a sample of the Python tests"
    guarded "$scratch/asan-run" "$python" -m pytest -q --capture=sys -p bindings -p no:cacheprovider --rootdir "$root" \
        "$tests"/test_{kept_files,checkpoint,team,exchange_state,exchange,shrink,shrink_core,profile}.py \
        "$tests"/test_{shards,push_sum,outer_steps,draws,carried,options,trace,sources,algorithms,survival,survival_allreduce,survival_exchange,survival_joins,view_keeper}.py -k "$(sampled)"
    step "asan: two MPI ranks that train, save and go on"
    guarded "$mpiexec" -n 2 --bind-to none "$scratch/asan-run" "$python" "$tests/sanitize_ranks.py" "$scratch/files"
    guarded "$scratch/asan-run" "$python" "$tests/bindings.py" "$names"
    unset PYTHONPATH PYTHONMALLOC GOSSIPGRAD_BINDINGS
}

sampled() { # as pytest's -k wants it
    local name wanted=''
    for name in a_checkpoint_goes_on 'test_virtual_clocks_go_on and free' 'test_team and not mpi' saved_and_loaded \
        a_run_and_a_step 'same_bits_as_a_trainer and server' that_only_began only_modules_of_torch shows_the_waits \
        'born_small and packed' a_larger_network_is_put_back plan_is_of_the_weights an_event_that_is_undone goes_on_after_an_event \
        products_and_bytes step_and_bench_use given_the_first_table measurement_that_fails noloco_to_diloco \
        groups_part sorted_samples divided_among_other_ranks two_cycles_by_hand words_are_the_cores two_batches_are_one_sequence the_core_knows \
        trains_as_memory_does attributes_of_a_source 'test_survival and not without_deaths and not whatever_was_read' answers_waits \
        another_keeper older_words other_lengths; do
        wanted+="${wanted:+ or }($name)"
    done
    printf '%s' "$wanted"
}

library() { gcc -print-file-name="$1"; }

for variant in "${@:-asan tsan}"; do for variant in $variant; do
    step "$variant: build"
    objects=$(build "$variant")
    case $variant in
    asan)
        under=(env)
        export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
        programs asan "$objects"
        wrapper "$scratch/asan-run" "$(library libasan.so):$(library libubsan.so):$(library libstdc++.so)"
        ASAN_OPTIONS=detect_leaks=0 trainings asan
        ASAN_OPTIONS=detect_leaks=0 sample
        ;;
    tsan)
        # Without the fixed address layout, and with PMIx's and UCX's own tricks off, or it does not start.
        under=(setarch -R)
        export UCX_MEM_EVENTS=no PMIX_MCA_gds=hash
        export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=0:exitcode=66:suppressions=$root/tests/tsan.supp
        programs tsan "$objects"
        wrapper "$scratch/tsan-run" "$(library libtsan.so)"
        trainings tsan
        ;;
    *)
        echo "unknown variant $variant; allowed: asan, tsan" >&2
        exit 2
        ;;
    esac
done; done
echo "sanitizers: clean"
