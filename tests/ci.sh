#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that can be tested without a GPU, in one go: the ordinary build and its tests, clang, the format,
# the sanitizers, the fuzzers. Ends with "N passed, N failed[, N skipped]", and not with 0 if anything failed.
#
#   tests/ci.sh [STEP...]      steps: build test format clang asan tsan fuzz; all of them by default
#
# Build folders are kept, so that a second run is quick. FUZZ_SECONDS: how long each fuzzer runs (30).
set -u
cd "$(dirname "$0")/.."
fuzz_seconds=${FUZZ_SECONDS:-30}
python=/usr/bin/python3
[ -x $python ] || python=python3

passed=0 failed=0 skipped=0 failures=
begin=$(date +%s)

# Run a command as one step: a heading, its output, how long it took. One more passed or failed.
step()
{
    title=$1
    shift
    echo
    echo "== $title"
    step_begin=$(date +%s)
    if "$@"; then
        passed=$((passed + 1))
        verdict=ok
    else
        failed=$((failed + 1))
        failures="$failures
    $title"
        verdict=FAILED
    fi
    echo "== $title: $verdict, $(($(date +%s) - step_begin)) s"
    [ $verdict = ok ]
}

# configure FOLDER OPTIONS...: once; a changed meson.build reconfigures by itself.
configure()
{
    folder=$1
    shift
    [ -f "$folder/build.ninja" ] || meson setup "$folder" "$@" >"/tmp/framestow-setup.$$" 2>&1 || {
        cat "/tmp/framestow-setup.$$"
        rm -rf "/tmp/framestow-setup.$$" "$folder"
        return 1
    }
    rm -f "/tmp/framestow-setup.$$"
}

compile()
{
    configure "$@" && ninja --quiet -C "$1"
}

# What meson saw, as three numbers; each of its tests counts.
count_tests()
{
    $python - "$1/meson-logs/testlog.json" <<'PYTHON'
import json
import sys
results = [json.loads(line)["result"] for line in open(sys.argv[1])]
good, skip = results.count("OK") + results.count("EXPECTEDFAIL"), results.count("SKIP")
print(good, len(results) - good - skip, skip)
PYTHON
}

# run_tests TITLE FOLDER MESON_TEST_ARGUMENTS...
run_tests()
{
    title=$1 folder=$2
    shift 2
    rm -f "$folder/meson-logs/testlog.json"
    step "$title" meson test -C "$folder" --no-rebuild --print-errorlogs "$@"
    counts=$(count_tests "$folder") || return
    # shellcheck disable=SC2086
    set -- $counts
    # The step itself was counted as one; its tests take that one's place.
    if [ $verdict = ok ]; then passed=$((passed - 1)); else failed=$((failed - ($2 > 0))); fi
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

sources()
{
    find proto kernels daemon libclient tests -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
}

# Another version of clang-format has another opinion. Says which files, not each line.
check_format()
{
    if ! command -v clang-format-14 >/dev/null; then
        echo "clang-format-14 is not here" >&2
        return 1
    fi
    wrong=$(sources | xargs clang-format-14 --dry-run -Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error: .*//p' | sort -u)
    [ -n "$wrong" ] || return 0
    echo "these are formatted otherwise; to change them: clang-format-14 -i" $wrong
    return 1
}

# All fuzzers at once, each from the corpus that is kept; what they find stays in the build folder.
run_fuzzers()
{
    fuzzers=
    for target in wire bslz4 counts kept filters; do
        found=build-fuzz/found-$target
        mkdir -p "$found"
        "build-fuzz/fuzz_$target" -max_total_time="$fuzz_seconds" -max_len=20480 -print_final_stats=1 \
            -artifact_prefix="build-fuzz/$target-" "$found" "tests/corpus/$target" >"build-fuzz/$target.log" 2>&1 &
        fuzzers="$fuzzers $target:$!"
    done
    fuzz_rc=0
    for fuzzer in $fuzzers; do
        target=${fuzzer%:*}
        if wait "${fuzzer#*:}"; then
            echo "$target: $(sed -n 's/^stat::number_of_executed_units: */executed /p' "build-fuzz/$target.log")"
        else
            echo "$target: failed; the input is build-fuzz/$target-*"
            tail -n 60 "build-fuzz/$target.log"
            fuzz_rc=1
        fi
    done
    return $fuzz_rc
}

# gcc 12's thread sanitizer cannot place its shadow where the kernel randomizes addresses by more than 28 bits.
unrandomized()
{
    if setarch -R true 2>/dev/null; then setarch -R "$@"; else "$@"; fi
}

# What has threads, or talks to a process that has: the rest would only be slow there.
threaded="assembler_test client_test device_test kept_test lane_test slots_test source_test store_test stream_test
    work_test test_cli test_daemon test_digests test_protocol"

do_build() { step "build with gcc" compile build; }
do_test() { run_tests "tests" build --no-suite gpu; }
do_format() { step "format" check_format; }
do_clang() { CC=clang CXX=clang++ step "build with clang" compile build-clang -Dcuda=disabled; }
do_asan()
{
    step "build with address and undefined behaviour sanitizers" compile build-asan -Dcuda=disabled \
        -Db_sanitize=address,undefined -Doptimization=1 &&
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 FRAMESTOW_SLOW=4 \
            run_tests "tests under ASan and UBSan" build-asan --no-suite gpu --timeout-multiplier 4
}
do_tsan()
{
    step "build with thread sanitizer" compile build-tsan -Dcuda=disabled -Db_sanitize=thread \
        -Doptimization=1 &&
        TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 FRAMESTOW_SLOW=8 \
            run_tests "tests under TSan" build-tsan --timeout-multiplier 8 $threaded
}
do_fuzz()
{
    CC=clang CXX=clang++ step "build the fuzzers" compile_fuzzers &&
        step "fuzz the wire, bslz4, counts, .stow files and filters, $fuzz_seconds s each" run_fuzzers
}
compile_fuzzers()
{
    configure build-fuzz -Dcuda=disabled -Dfuzz=true -Doptimization=1 &&
        ninja --quiet -C build-fuzz fuzz_wire fuzz_bslz4 fuzz_counts fuzz_kept fuzz_filters
}

[ $# -gt 0 ] || set -- build test format clang asan tsan fuzz
for name in "$@"; do
    case $name in
    build | test | format | clang | asan | tsan | fuzz) "do_$name" ;;
    *)
        echo "no step '$name'" >&2
        exit 2
        ;;
    esac
done

echo
[ -z "$failures" ] || echo "Failed:$failures"
if command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; then
    echo "The CUDA kernels were compiled; they run with 'meson test -C build --suite gpu' where there is a GPU."
else
    echo "No nvcc here: the CUDA kernels were not compiled."
fi
echo "$(($(date +%s) - begin)) s in all"
line="$passed passed, $failed failed"
[ $skipped -eq 0 ] || line="$line, $skipped skipped"
echo "$line"
[ $failed -eq 0 ]
