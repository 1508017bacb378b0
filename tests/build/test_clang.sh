#!/usr/bin/env bash
# The other compiler builds all of C without a warning (what stands in for a GPU is C++). From make
# test on: it takes as long as the build itself.
. "$(dirname "$0")"/../report.sh
[ "${TEST_SCALE:-1}" -ge 10 ] && [ "${TEST_RULES:-1}" != 0 ] ||
    skip_all clang_builds_clean "only in make test and make soak"
needs clang_builds_clean clang
if said=$(env -u MAKEFLAGS -u MAKELEVEL \
    make B=build-clang CC=clang STANDIN= all programs 2>&1); then
    ok clang_builds_clean
else
    fail clang_builds_clean "$(grep -m 1 -E 'error|warning|undefined' <<<"$said")"
fi
finish
