#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Each header compiles alone: as C11, and those that C++ and CUDA see as C++17 too.
#
#   tests/headers.sh SOURCE_ROOT BUILD_ROOT CC CXX CUDA_INCLUDE [FLAGS...]
#
# CXX and CUDA_INCLUDE may be empty: then the headers that need them are left out, and that is said.
set -eu
root=$1 build=$2 cc=$3 cxx=$4 cuda=$5
shift 5

passed=0 failed=0 skipped=0
warnings="-Wall -Wextra -Werror -Wundef -Wshadow"
includes="-I$root/libclient/include -I$root/proto -I$root/kernels -I$root/daemon -I$root/libclient -I$root/tests
    -I$build"
for package in hdf5-serial libuv json-c; do
    includes="$includes $(pkg-config --cflags $package 2>/dev/null || :)"
done
[ -z "$cuda" ] || includes="$includes -isystem $cuda"

check()
{
    language=$1 header=$2
    shift 2
    if printf '#include "%s"\n' "$header" | "$@" -x "$language" -fsyntax-only -; then
        passed=$((passed + 1))
    else
        echo "$header does not compile alone as $language" >&2
        failed=$((failed + 1))
    fi
}

cd "$root"
for header in libclient/include/*.h proto/*.h kernels/*.h daemon/*.h libclient/*.h tests/*.h; do
    [ -e "$header" ] || continue
    if [ -z "$cuda" ] && grep -q '#include <cuda' "$header"; then
        echo "$header: skipped, there is no CUDA here"
        skipped=$((skipped + 1))
        continue
    fi
    # shellcheck disable=SC2086
    check c "$root/$header" $cc -std=c11 -D_GNU_SOURCE -DLOG_MODULE='"test"' $warnings -Wno-unused-function \
        -Wno-unused-variable $includes "$@"
    case $header in
    libclient/include/* | kernels/frame.h | kernels/hd.h | kernels/launch.h | kernels/*_hd.h) ;;
    *) continue ;;
    esac
    if [ -z "$cxx" ]; then
        echo "$header: skipped as C++, there is no C++ compiler here"
        skipped=$((skipped + 1))
        continue
    fi
    # shellcheck disable=SC2086
    check c++ "$root/$header" $cxx -std=c++17 $warnings $includes "$@"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
