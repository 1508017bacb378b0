#!/usr/bin/env bash
# format.sh [FILE...] -- lays out C files with clang-format and .clang-format, in place; all tracked
# ones without arguments. Optional: nothing checks it, and tables laid out by hand may want
# "clang-format off" around them.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v clang-format >/dev/null 2>&1 || { echo "format: clang-format is not installed" \
    >&2; exit 3; }
[ $# -gt 0 ] || mapfile -t files < <(git ls-files '*.c' '*.h')
clang-format -i "${@:-${files[@]}}"
