#!/usr/bin/env bash
# run_fuzz.sh [NAME...] -- runs the fuzzers built in $B/fuzz for FUZZ_TIME seconds each (default
# 60), as many at once as there are cores.
#
# Seeds are read from fuzz/corpus/NAME (kept small, in the repository); inputs that reach new code
# go to $B/corpus/NAME and a finding to $B/findings/NAME-*. Closes with "N passed, N failed, N
# skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build-fuzz} FUZZ_TIME=${FUZZ_TIME:-60}

run_one()
{
    local name=$1 log=$B/fuzz-logs/$1 seeds=()
    mkdir -p "$B/corpus/$name" "$B/findings"
    [ ! -d "fuzz/corpus/$name" ] || seeds=("fuzz/corpus/$name")
    if "$B/fuzz/fuzz_$name" -max_total_time="$FUZZ_TIME" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 \
        -artifact_prefix="$B/findings/$name-" "$B/corpus/$name" "${seeds[@]}" >"$log" 2>&1; then
        echo "ok $name: $(awk \
            '/number_of_executed_units/ {n = $2}
             /^#.*cov:/ {for (i = 1; i < NF; i++) if ($i == "cov:") c = $(i + 1)}
            END {print n " runs, " c " edges"}' "$log")"
    else
        echo "FAIL $name: $(grep -m 1 -E 'ERROR|runtime error' "$log" || tail -n 1 "$log") ($log)"
    fi
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

rm -rf "$B/fuzz-logs"
mkdir -p "$B/fuzz-logs"
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for path in fuzz/fuzz_*.c; do
        [ -e "$path" ] && names+=("$(basename "$path" .c | sed 's/^fuzz_//')")
    done
fi
printf '%s\n' "${names[@]}" | xargs -r -n 1 -P "$(nproc)" "$0" --one | tee "$B/fuzz-logs/.all"
awk '/^ok / {p++} /^FAIL / {f++} END {printf "%d passed, %d failed, 0 \
    skipped\n", p, f; exit f > 0}' "$B/fuzz-logs/.all"
