#!/usr/bin/env bash
# plugin.sh OUT NAME BUILD MADE FILE... -- writes the kernels of a backend as the one file that the
# program opens; what is in it says src/backend/gpu/plugin.h. Each FILE goes by its name without
# what follows the first point.
set -euo pipefail
out=$1 name=$2 build=$3 made=$4
shift 4
trap 'rm -f "$out.body" "$out.tmp"' EXIT

# to_16 BYTES: zeros up to a multiple of 16
to_16() { head -c $(((16 - $1 % 16) % 16)) /dev/zero; }

{
    text=$(
        printf '%s %s %s\n' "$name" "$build" "$made"
        for file; do
            base=$(basename "$file")
            printf '%s %s\n' "${base%%.*}" "$(stat -c %s "$file")"
        done
    )
    printf '%s\n\n' "$text"
    to_16 $((${#text} + 2))
    for file; do
        cat "$file"
        to_16 "$(stat -c %s "$file")"
    done
} >"$out.body"
read -r sum bytes _ <<<"$(cksum "$out.body")"
{ printf 'pith-kernels 1 %010u %021u\n' "$sum" "$bytes" && cat "$out.body"; } >"$out.tmp"
mv "$out.tmp" "$out"
