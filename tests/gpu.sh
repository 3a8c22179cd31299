#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that needs a GPU, from an installed tree; builds nothing.
#
#   tests/gpu.sh PREFIX OUT [STEP ...]
#
# PREFIX  an installed tree: bin, lib, libexec/framestow with its tests folder (meson -Dinstall_tests=true)
# OUT     gets report.txt (all that the steps said), summary.txt (a line a step), bench.jsonl (the figures),
#         daemon.log
# STEP    only these: tests sanitizer demo users handoff random bench codec load. All of them without.
#
# FRAMESTOW_DEVICE: another device than cuda:0; host tries out the script itself.
# FRAMESTOW_SAMPLES: a folder of x_NAME.gz, 512 or more frames of 192 x 192 uint16 each, for the step codec.
# FRAMESTOW_PROTOTYPE: a folder with another decoder to race against, see bench/counts_race.sh.
# A step that fails or takes too long is counted and the next one runs. Exits 1 if any failed.
set -u
umask 022

if [ $# -lt 2 ]; then
    sed -n '3,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
mkdir -p "$2" || exit 2
out=$(cd "$2" && pwd)
source_tree=$(cd "$(dirname "$0")/.." && pwd)
from=$(cd "$1" && pwd) || exit 2
shift 2
device=${FRAMESTOW_DEVICE:-cuda:0}
kinds='cuda-ipc cuda-fd'
[ "$device" != host ] || kinds=host-fd
wanted=${*:-tests sanitizer demo users handoff random bench codec load}

# A copy that another user can reach too: the installed tree may lie in somebody's home.
work=$(mktemp -d /tmp/fs-gpu.XXXXXX) || exit 2
chmod 755 "$work"
cp -R "$from" "$work/tree" && chmod -R a+rX "$work/tree" || exit 2
bin=$work/tree/bin
tests=$work/tree/libexec/framestow/tests
LD_LIBRARY_PATH=$work/tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
FRAMESTOW_SOCKET=$work/s
PATH=$bin:$PATH:/usr/local/cuda/bin
export LD_LIBRARY_PATH FRAMESTOW_SOCKET PATH

: >"$out/report.txt"
: >"$out/summary.txt"
: >"$out/bench.jsonl"
: >"$out/daemon.log"
failed=0
daemon=

stop_daemon()
{
    [ -n "$daemon" ] || return 0
    kill -TERM "$daemon" 2>/dev/null
    ( sleep 20; kill -KILL "$daemon" 2>/dev/null ) &
    killer=$!
    wait "$daemon"
    code=$?
    kill "$killer" 2>/dev/null
    daemon=
    [ $code -eq 0 ] || note FAILED "framestowd ended with $code"
}

trap 'stop_daemon; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# note RESULT WORDS: a line of the summary
note()
{
    [ "$1" = FAILED ] && failed=$((failed + 1))
    printf '%-8s %s\n' "$1" "$2" | tee -a "$out/summary.txt"
}

# step NAME SECONDS COMMAND...: run it, report what it says, note how it went. Exit 77: skipped.
step()
{
    name=$1 limit=$2
    shift 2
    printf '\n==== %s: %s\n' "$name" "$*" >>"$out/report.txt"
    begin=$(date +%s.%N)
    timeout -k 10 "$limit" "$@" >"$work/said" 2>&1
    code=$?
    seconds=$(echo "$begin $(date +%s.%N)" | awk '{ printf "%.1f", $2 - $1 }')
    head -c 2000000 "$work/said" >>"$out/report.txt"
    case $code in
    0) note ok "$name (${seconds} s): $(tail -n 1 "$work/said" | cut -c 1-200)" ;;
    77) note skipped "$name: $(tail -n 1 "$work/said" | cut -c 1-200)" ;;
    124 | 137) note FAILED "$name: not done in $limit s" ;;
    *) note FAILED "$name: exit $code: $(tail -n 1 "$work/said" | cut -c 1-300)" ;;
    esac
    return $code
}

# bench NAME SECONDS COMMAND...: a step whose last line is a JSON object of figures
bench()
{
    step "$@" || return
    json=$(grep '^{' "$work/said")
    [ -z "$json" ] || echo "$json" | sed "s|^{|{\"step\": \"$1\", |" >>"$out/bench.jsonl"
}

start_daemon()
{
    [ -z "$daemon" ] || return 0
    framestowd --device $device --socket "$FRAMESTOW_SOCKET" --state-dir "$work/state" 2>>"$out/daemon.log" &
    daemon=$!
    i=0
    until framestow ls >/dev/null 2>&1; do
        i=$((i + 1))
        if [ $i -gt 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
            note FAILED "framestowd does not start: $(tail -n 1 "$out/daemon.log")"
            daemon=
            return 1
        fi
        sleep 0.1
    done
    chmod 666 "$FRAMESTOW_SOCKET"
}

# The acquisition that consumers and the hand-off read; its truth in $truth.
have_small()
{
    start_daemon || return 1
    if [ ! -e "$work/small" ]; then
        small_truth=$(framestow-simulate "$work/small" --name small --scan 64x64 --shards 4 --truth)
    fi
    truth=$small_truth
    framestow info small >/dev/null 2>&1 ||
        step 'load 64x64' 60 framestow load "$work/small/small_master.h5" --share all
}

# same NAME COMMAND...: the command prints the small acquisition's digest
same()
{
    name=$1
    shift
    step "$name" 200 sh -c 'truth=$1; shift; said=$("$@") || exit 1; echo "$said"; [ "$said" = "$truth" ]' \
        same "$truth" "$@"
}

run_tests()
{
    found=no
    for test in "$tests"/gpu_*_test; do
        [ -x "$test" ] || continue
        found=yes
        step "$(basename "$test")" 180 "$test"
    done
    [ $found = yes ] || note FAILED "no gpu_*_test in $tests"
    for name in device_test lane_test work_test; do
        if [ -x "$tests/$name" ]; then
            step "$name $device" 120 "$tests/$name" $device
        else
            note FAILED "no $name in $tests"
        fi
    done
}

run_sanitizer()
{
    if ! command -v compute-sanitizer >/dev/null 2>&1; then
        note skipped 'compute-sanitizer is not here'
        return
    fi
    for test in "$tests"/gpu_*_test; do
        for check in memcheck racecheck; do
            step "$check $(basename "$test")" 240 compute-sanitizer --tool "$check" --error-exitcode 9 "$test" --short
        done
    done
    for check in memcheck racecheck; do
        step "$check work_test" 240 compute-sanitizer --tool "$check" --error-exitcode 9 "$tests/work_test" $device
    done
}

run_demo()
{
    for demo in "$source_tree/deploy/demo.py" "$tests/demo.py"; do
        if [ -r "$demo" ]; then
            step "demo on $device" 180 python3 "$demo" --bin "$bin" --device $device
            return
        fi
    done
    note FAILED 'demo.py is not here'
}

run_users()
{
    have_small || return
    for kind in host-fd $kinds; do
        same "$kind" framestow frames small --digest --memory $kind
    done
    if ! command -v setpriv >/dev/null 2>&1; then
        note skipped 'setpriv is not here'
    else
        for kind in $kinds; do
            same "$kind under uid 65534" setpriv --reuid 65534 --regid 65534 --clear-groups \
                framestow frames small --digest --memory $kind
        done
    fi
    for kind in $kinds; do
        same "$kind in namespaces of its own" unshare --ipc --pid --net --mount --fork --mount-proc \
            framestow frames small --digest --memory $kind
    done
    leases=$(framestow stats | awk '$1 == "leases" { print $2 }')
    [ "$leases" = 0 ] || note FAILED "leases left over: $leases"
}

run_handoff()
{
    have_small || return
    for kind in $kinds; do
        for consumers in 1 3; do
            for spin in 0 1000; do
                bench "random frame, $consumers consumers, spin $spin us, $kind" 60 "$tests/handoff" small \
                    --mode request --consumers $consumers --spin $spin --seconds 3 --memory $kind
            done
        done
    done
    for consumers in 1 3; do
        for spin in 0 1000; do
            bench "stream of single frames, $consumers consumers, spin $spin us" 90 "$tests/handoff" small \
                --mode stream --consumers $consumers --spin $spin --seconds 5
        done
        bench "30 frames/s, $consumers consumers" 60 "$tests/handoff" small --mode request \
            --consumers $consumers --rate 30 --seconds 6
        bench "sequential, $consumers consumers" 60 "$tests/handoff" small --mode sequential \
            --consumers $consumers --seconds 3
    done
}

# Frames from anywhere in more than the L2 cache holds, one stream a frame and four.
run_random()
{
    start_daemon || return
    framestow-simulate "$work/middle" --name middle --scan 128x128 --shards 4 >/dev/null
    for streams in 1 4; do
        step "load 128x128, $streams streams" 60 framestow load "$work/middle/middle_master.h5" --name middle$streams \
            --streams $streams --replace || return
        for spin in 0 1000; do
            for batch in 1 64 256; do
                bench "scattered, $streams streams, batch $batch, spin $spin us" 60 "$tests/handoff" middle$streams \
                    --mode request --spin $spin --seconds 2 --batch $batch
            done
        done
        framestow unload middle$streams
    done
    rm -rf "$work/middle"
}

run_bench()
{
    stop_daemon
    bench decode_bench 120 "$tests/decode_bench"
    bench 'views' 60 "$tests/gpu_view_test" --bench
    bench launch_bench 60 "$tests/launch_bench" $device 5
}

run_codec()
{
    if [ -z "${FRAMESTOW_SAMPLES:-}" ]; then
        note skipped 'codec: FRAMESTOW_SAMPLES does not name a folder of samples'
    else
        bench counts_bench 300 "$tests/counts_bench" "$FRAMESTOW_SAMPLES"
        for name in gpu_encode_test gpu_sums_test; do
            bench "$name --bench" 300 "$tests/$name" --bench "$FRAMESTOW_SAMPLES"/x_*.gz
        done
    fi
    if [ -z "${FRAMESTOW_PROTOTYPE:-}" ]; then
        note skipped 'codec: FRAMESTOW_PROTOTYPE does not name a folder to race against'
    else
        step race 550 "$tests/counts_race.sh" "$FRAMESTOW_PROTOTYPE"
    fi
}

# The acquisition that design figures are for: 19.3 GB decoded, some 3 GB of files, in the page cache.
run_load()
{
    start_daemon || return
    step 'simulate 512x512' 200 framestow-simulate "$work/large" --name large --scan 512x512 --shards 4 --truth ||
        return
    truth=$(cat "$work/said")
    cat "$work"/large/* >/dev/null
    sleep 3 # indexes of files that were written just now are not kept: round 1 is then the only fresh one
    for round in 1 2 3 4 5 6 7; do
        bench "load 512x512, round $round" 120 framestow --json load "$work/large/large_master.h5" || return
        [ $round -eq 7 ] || framestow unload large
    done
    bench 'sequential 512x512' 60 "$tests/handoff" large --mode sequential --seconds 3
    bench 'sequential 512x512, 2 slots of 4096' 60 "$tests/handoff" large --mode sequential --seconds 3 \
        --batch 4096 --slots 2
    same 'digest 512x512' framestow frames large --digest
    step 'sums 512x512' 60 "$tests/sums_bench" "$FRAMESTOW_SOCKET" large 20
    step 'verify 512x512' 60 framestow verify large
    step 'save 512x512' 60 framestow save large "$work/large.stow"
    framestow unload large
    for round in 1 2 3 4 5 6 7; do
        bench "reload 512x512, round $round" 60 framestow --json load "$work/large.stow" --name large || return
        [ $round -eq 7 ] || framestow unload large
    done
    same 'digest of the reloaded' framestow frames large --digest
    framestow unload large
    bench 'load 512x512 as bslz4' 120 framestow --json load "$work/large/large_master.h5" --form bslz4
    framestow unload large
    rm -rf "$work/large" "$work/large.stow"
}

{
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader
    nproc
    grep -m 1 'model name' /proc/cpuinfo
    uname -r
} >>"$out/report.txt" 2>&1
for part in $wanted; do
    case $part in
    tests | sanitizer | demo | users | handoff | random | bench | codec | load) run_$part ;;
    *) note FAILED "no such step: $part" ;;
    esac
done
[ -z "$daemon" ] || step doctor 30 framestow doctor
stop_daemon
if [ $failed -gt 0 ]; then
    echo "gpu.sh: $failed failed, see $out/report.txt"
    exit 1
fi
echo "gpu.sh: all passed"
