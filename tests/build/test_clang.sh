#!/usr/bin/env bash
# The other compiler builds all of C without a warning (what stands in for a GPU is C++). From make
# test on: it takes long. Warnings come before code is optimized, which takes most of a build's time
# and is left to make soak.
. "$(dirname "$0")"/../report.sh
[ "${TEST_SCALE:-1}" -ge 10 ] && [ "${TEST_RULES:-1}" != 0 ] ||
    skip_all clang_builds_clean "only in make test and make soak"
needs clang_builds_clean clang
flags="-O2 -g"
[ "$TEST_SCALE" -ge 100 ] || flags="-O0 -Xclang -disable-llvm-passes"
if said=$(env -u MAKEFLAGS -u MAKELEVEL \
    make B=build-clang CC=clang CFLAGS="$flags" STANDIN= all programs 2>&1); then
    ok clang_builds_clean
else
    fail clang_builds_clean "$(grep -m 1 -E 'error|warning|undefined' <<<"$said")"
fi
finish
