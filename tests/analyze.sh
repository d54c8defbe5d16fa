#!/usr/bin/env bash
# Static analysis of csrc: tests/analyze.sh [gcc] [clang] [file ...]     (both, and every file, by default)
#
# gcc: -fanalyzer of gcc 12 or later. clang: the analyzer that scan-build runs. Both get each file with the flags of the
# build (compile_commands.json), once, with those of its first instruction set. It builds first, in place, so that the
# commands are of these sources: $PYTHON has setuptools, as with the test extra. Any warning is an
# error; where one is wrong, the code says why beside it. An analyzer that is not installed is skipped, with a word.
# gcc takes some ten seconds on two cores, clang two minutes. $JOBS: how many files at a time (default: the cores).
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tools=() files=()
for argument in "$@"; do
    case $argument in
    gcc | clang) tools+=("$argument") ;;
    *) files+=("$argument") ;;
    esac
done
[ ${#tools[@]} -gt 0 ] || tools=(gcc clang)

"$python" setup.py -q build_ext -i >"$scratch/build" 2>&1 || {
    cat "$scratch/build"
    exit 1
}

# Where clang has no OpenMP: what base/parallel.c uses of it.
cat >"$scratch/omp.h" <<'HEADER'
int omp_get_thread_num(void);
int omp_get_num_threads(void);
void omp_set_num_threads(int);
HEADER

# One command a line, for: tool, folder of omp.h, files.
commands() {
    "$python" - "$@" <<'PYTHON'
import glob, json, os, shlex, sys

tool, scratch, wanted = sys.argv[1], sys.argv[2], set(sys.argv[3:])
found = glob.glob("build/obj/*/release/compile_commands.json")
if not found:
    sys.exit("analyze.sh: no build/obj/*/release/compile_commands.json: build the package first")
seen = set()
for entry in json.load(open(max(found, key=os.path.getmtime))):
    name = entry["file"]
    if name in seen or (wanted and name not in wanted):
        continue
    seen.add(name)
    given, kept = iter(entry["arguments"][1:]), []
    for word in given:
        if word in ("-isystem", "-I"):
            kept += [word, next(given)]
        elif word in ("-o", "-MF"):
            next(given)
        elif word.startswith(("-I", "-D", "-std", "-m", "-pthread", "-fopenmp")) and not (
            tool == "clang" and word.startswith("-mprefer")
        ):
            kept.append(word)
    # At -O0 the analyzer of gcc sees the code as it is written.
    if tool == "gcc":
        line = ["gcc", "-fanalyzer", "-O0", *kept, "-c", name, "-o", "/dev/null"]
    else:
        line = ["clang", "--analyze", "--analyzer-output", "text", "-w", *kept, "-idirafter", scratch, name]
    print(shlex.join(line))
PYTHON
}

failed=0
for tool in "${tools[@]}"; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool: not installed, skipped"
        continue
    fi
    if [ "$tool" = gcc ] && ! echo 'int x;' | gcc -fanalyzer -x c -c - -o /dev/null 2>/dev/null; then
        echo "gcc: this version has no -fanalyzer, skipped"
        continue
    fi
    began=$SECONDS
    commands "$tool" "$scratch" ${files[@]+"${files[@]}"} >"$scratch/commands"
    xargs -a "$scratch/commands" -d '\n' -P "${JOBS:-$(nproc)}" -I '{}' sh -c '{}' >"$scratch/log" 2>&1 || true
    if grep -qE '(warning|error):' "$scratch/log"; then
        cat "$scratch/log"
        failed=1
    fi
    echo "$tool: $(wc -l <"$scratch/commands") files, $((SECONDS - began)) s, $(grep -cE '(warning|error):' "$scratch/log") reports"
done
exit $failed
