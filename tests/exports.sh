#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# libframestow exports the functions of framestow.h, all of them and nothing else.
#
#   tests/exports.sh HEADER LIBRARY
set -eu
header=$1 library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A declaration begins in the first column, with a type.
sed -n 's/^[a-z].*[ *]\(stow_[a-z0-9_]*\)(.*/\1/p' "$header" | sort -u >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exported"

missing=$(comm -23 "$work/declared" "$work/exported")
extra=$(comm -13 "$work/declared" "$work/exported")
both=$(comm -12 "$work/declared" "$work/exported" | wc -l)
[ -z "$missing" ] || echo "declared, not exported:" $missing >&2
[ -z "$extra" ] || echo "exported, not declared:" $extra >&2
echo "$both passed, $(echo $missing $extra | wc -w) failed"
[ -z "$missing$extra" ] && [ "$both" -gt 0 ]
