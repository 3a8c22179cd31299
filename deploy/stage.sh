#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes an installed tree that may be copied to another machine and run there, under any path, where neither
# compiler nor most libraries are installed (Ubuntu 24.04 or Debian 12; a CUDA driver for cuda:N). HDF5's
# serial run time (libhdf5-103*) must be there: it brings curl and more, which is too much to carry.
#
#   deploy/stage.sh [DIR]                  default: stage/
#   GPU_ARCH=sm_90 deploy/stage.sh         machine code for these GPUs only (comma-separated)
#
# The tree has the programs, the tests and benches in libexec/framestow/tests, and in lib/ those shared
# libraries that a plain Ubuntu 24.04 server lacks. tests/gpu.sh in there runs what needs a GPU.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-stage}
arch=${GPU_ARCH:-sm_80,sm_90,sm_120,compute_90}
build=build-stage
most_kib=98304

set_options="-Dinstall_tests=true -Dgpu_arch=$arch"
rm -rf "$dir"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# shellcheck disable=SC2086
if [ -f $build/build.ninja ]; then
    meson configure $build --prefix "$dir" $set_options
else
    meson setup $build --prefix "$dir" --libdir lib $set_options >/dev/null
fi
ninja --quiet -C $build
meson install -C $build --quiet

tests=$dir/libexec/framestow/tests
# Of the C tests only those that tests/gpu.sh runs: each has a copy of all kernels in it.
for file in "$tests"/*_test; do
    case ${file##*/} in
    gpu_*_test | device_test | lane_test | work_test) ;;
    *) rm "$file" ;;
    esac
done
find "$dir" -type f -perm -u+x | while read -r file; do
    # Line numbers of the kernels stay in the cubin; those of the C are not needed there.
    strip --strip-unneeded "$file" 2>/dev/null || :
done

wanted='libuv\.so|libprotobuf-c\.so|libjson-c\.so|libxxhash\.so|libdeflate\.so|libzstd\.so'
find "$dir/bin" "$dir/libexec" -type f -perm -u+x -exec ldd {} + 2>/dev/null |
    awk '$2 == "=>" { print $3 }' | sort -u | grep -E "/($wanted)" | while read -r library; do
    cp -L "$library" "$dir/lib/"
done

# Scripts: the demo, what needs a GPU, and the end-to-end tests (FRAMESTOW_BIN=DIR/bin FRAMESTOW_DEVICE=cuda:0).
install -m 755 deploy/demo.py tests/gpu.sh tests/bench/*.py tests/bench/*.sh "$tests/"
install -m 644 tests/*.py "$tests/"
cp -r tests/corpus "$tests/"
install -d "$tests/golden"
install -m 644 tests/golden/*.stow "$tests/golden/"

kib=$(du -sk "$dir" | cut -f 1)
echo "$dir: $kib KiB"
if [ "$kib" -gt $most_kib ]; then
    echo "stage: more than $most_kib KiB; see: du -a $dir | sort -n | tail" >&2
    exit 1
fi
