#!/usr/bin/env bash
# The other compiler builds everything without a warning. From make test on: it takes as long as the build itself.
set -u
cd "$(dirname "$0")/.." || exit 1
skip() { echo "skip clang_builds_clean: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }

[ "${TEST_SCALE:-1}" -ge 10 ] && [ "${TEST_RULES:-1}" != 0 ] || skip "only in make test and make soak"
command -v clang >/dev/null 2>&1 || skip "clang is not installed"
if out=$(env -u MAKEFLAGS -u MAKELEVEL make B=build-clang CC=clang all programs 2>&1); then
    echo "ok clang_builds_clean"
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "FAIL clang_builds_clean: $(grep -m 1 -E 'error|warning|undefined' <<<"$out")"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
