#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Our decoder of form counts against another one, in turn on the same GPU.
#
#   tests/bench/counts_race.sh FOLDER [BENCH]
#
# FOLDER  has the other one as a program, k3, and x_SAMPLE.gz and o_SAMPLE.bin (counts_bench.c tells of the former);
#         of the rows that k3 SAMPLE FRAMES 1 prints, the fastest right one of one stream is taken that writes
#         uint16 ("m1", "m6")
# BENCH   counts_bench; without it, the one beside this script
#
# Prints a row for each sample and number of frames: microseconds of both, and how many times faster ours is. Jobs
# lie on the GPU, as all that k3 reads; but for slots, where they lie in host memory, as a lane has them.
set -eu
[ $# -ge 1 ] || { sed -n '3,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bench=$(realpath "${2:-$(dirname "$0")/counts_bench}")
cd "$1"

printf '%-10s %8s %12s %12s %8s\n' sample frames other_us ours_us faster
for sample in thin_0.5 thick_1.1 thick_5.0; do
    other=$(./k3 "$sample" 65536 1)
    ours=$("$bench" . --device-jobs "$sample")
    for frames in 65536 8192 1024 256 64 1; do
        other_us=$(echo "$other" |
            sed -n "s/.* S1 .* m[16] rd[0-9] .* n  *${frames}[r ]:  *\([0-9.]*\) us.* bad 0\$/\1/p" |
            sort -n | head -n 1)
        ours_us=$(echo "$ours" |
            sed -n "s/.*\"what\": \"frames\", \"frames\": $frames, \"us\": \([0-9.]*\),.*/\1/p")
        echo "$sample $frames $other_us $ours_us" |
            awk '{ printf "%-10s %8d %12.1f %12.1f %8.3f\n", $1, $2, $3, $4, $3 / $4 }'
    done
    echo "$ours" | sed -n 's/.*"what": "slots".*"us": \([0-9.]*\),.*"gcounts_per_s": \([0-9.]*\),.*/\1 \2/p' |
        awk -v sample="$sample" '{ printf "%-10s slots, 64 x 4096: %.1f us, %.1f G counts/s\n", sample, $1, $2 }'
done
