#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The one list of packages that Framestow needs, for Debian 12 and Ubuntu 24.04.
#
#   deploy/install-deps.sh [build|demo|test|all] [--print]
#
# Says what is missing, then installs it: as root, or by sudo. Where neither works it prints the line for
# the administrator and exits 1. Nothing missing: no word, no network. --print lists the packages and
# installs nothing. nvcc is not among them: with a CUDA toolkit here the build uses it, without it is for the
# host device only.
set -eu

usage()
{
    echo "usage: deploy/install-deps.sh [build|demo|test|all] [--print]" >&2
    exit 2
}

group=build
print=no
for argument in "$@"; do
    case $argument in
    build | demo | test | all) group=$argument ;;
    --print) print=yes ;;
    *) usage ;;
    esac
done

build="gcc g++ make meson ninja-build pkg-config protobuf-c-compiler libprotobuf-c-dev libuv1-dev
    libhdf5-dev liblz4-dev libjson-c-dev libpng-dev libseccomp-dev libssl-dev libsystemd-dev
    libxxhash-dev libdeflate-dev libzstd-dev"
demo="python3"
test="python3 python3-pytest python3-numpy python3-h5py python3-hdf5plugin python3-xxhash
    python3-zstandard bitshuffle
    clang clang-format-14"

distribution=unknown
if [ -r /etc/os-release ]; then
    distribution=$(. /etc/os-release && echo "$ID-${VERSION_ID:-}")
fi
# The run time of the sanitizers and of libFuzzer carries clang's version in its name.
case $distribution in
debian-12) test="$test libclang-rt-14-dev" ;;
ubuntu-24.04) test="$test libclang-rt-18-dev" ;;
esac

case $group in
build) packages=$build ;;
demo) packages="$build $demo" ;;
test | all) packages="$build $demo $test" ;;
esac
packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')

if [ $print = yes ]; then
    printf '%s\n' $packages
    exit 0
fi
if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "install-deps: this is neither Debian nor Ubuntu; going on with what is here. Their names for" \
        "what is needed:" $packages >&2
    exit 0
fi

missing=
for package in $packages; do
    status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1) || status=
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "Missing here, to be installed with apt-get:"
printf '    %s\n' $missing
case $distribution in
debian-12 | ubuntu-24.04) ;;
*) echo "(the names are those of Debian 12 and Ubuntu 24.04; this is $distribution)" ;;
esac

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    elif command -v sudo >/dev/null 2>&1 && [ -t 0 ]; then
        as_root=sudo
    else
        echo "No root and no sudo here. Ask the administrator to run:" >&2
        echo "    apt-get update && apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing
