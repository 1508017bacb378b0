#!/usr/bin/env bash
# In make test alone: make check has no GPU.
# test_gpu_script.sh -- scripts/gpu.sh with programs that stand in for the GPU's and for ours: it
# goes through all parts, does none twice, ends in time and goes on from there, and tells what has
# failed.
. "$(dirname "$0")"/../report.sh

mkdir -p "$dir/bin" "$dir/b/tests" "$dir/b/bench" "$dir/away"
stub() { printf '#!/bin/bash\n%s\n' "$2" >"$1" && chmod +x "$1"; }
stub "$dir/bin/nvidia-smi" 'echo name, driver; echo a GPU, 1'
stub "$dir/bin/compute-sanitizer" '
while [ "${1#--}" != "$1" ]; do [ "$1" = --tool ] || [ "$1" = --error-exitcode ] && shift; shift
done; "$@" && echo "ERROR SUMMARY: 0 errors"'
stub "$dir/b/gpu_roof" 'echo "reads its memory: 100 GB/s"
echo "tensor cores, f16 with f32 sums, mma.sync: 100.0 TFLOP/s"'
stub "$dir/b/tests/test_cuda_ops" '
[ ! -e "$SLOW" ] || sleep 3; echo "1 passed, 0 failed, 0 skipped"'
cp "$dir/b/tests/test_cuda_ops" "$dir/b/tests/test_cuda_attn"
stub "$dir/b/tests/test_cuda" 'echo "ok $TEST_ONLY"; [ "$TEST_ONLY" != "$BAD" ]'
stub "$dir/b/bench/bench_record" '
echo "cuda0: 100.0 us of the host for a token replayed: 4.0 times"'
# A program that makes models, traces and figures.
stub "$dir/b/pith" '
echo "$*" >>"$CALLS"
case $1 in
synth) echo model >"$2" ;;
devices) echo "vulkan0  the same GPU" ;;
bench)
    while [ $# -gt 0 ]; do [ "$1" = --trace ] && cat >"$2" <<<"$TRACE"; shift; done
    echo "  tg128 12 tokens/s"
    echo "synthetic q4_0 1 tg128 14.00"
    echo "synthetic q4_0 1 tg128x32 100.00"
    echo "synthetic q4_0 1 pp2048 3000.00" ;;
esac'
touch "$dir/b/pith-cuda.kernels" "$dir/b/pith-vulkan.kernels" "$dir/model.gguf"
export PATH=$dir/bin:$PATH GPU_BUILD=$dir/b GPU_MAKE=0 TEST_GGUF=$dir/model.gguf TYPES=q4_0
export CALLS=$dir/calls SLOW=$dir/slow BAD=
export TRACE='{"traceEvents":[
{"ph":"X","cat":"submit","name":"submit cuda0","ts":1.0,"dur":20.0,"pid":1},
{"ph":"X","cat":"submit","name":"submit cuda0","ts":9.0,"dur":40.0,"pid":1},
{"ph":"M","pid":2,"name":"process_name","args":{"name":"cuda0"}},
{"ph":"M","pid":3,"name":"process_name","args":{"name":"cuda1"}},
{"ph":"X","cat":"segment","pid":2,"tid":1,"ts":0.0,"dur":60.0,"name":"a"},
{"ph":"X","cat":"segment","pid":3,"tid":1,"ts":40.0,"dur":60.0,"name":"b"},
{"ph":"X","cat":"wait","name":"wait cuda0","ts":9.0,"dur":400.0,"pid":1}]}'

# runs NAME STATUS PATTERN WORD...: the script says PATTERN ("": nothing in particular)
runs()
{
    local name=$1 status=$2 pattern=$3 got
    shift 3
    timeout 100 scripts/gpu.sh "$@" >"$out" 2>&1
    got=$?
    if [ $got -ne "$status" ]; then
        fail "$name" "status $got, wanted $status: $(tail -n 2 "$out" | tr '\n' ' ')"
    elif [ -n "$pattern" ] && ! grep -qE "$pattern" "$out"; then
        fail "$name" "nothing of \"$pattern\" in \"$(head -c 300 "$out" | tr '\n' ' ')\""
    else
        ok "$name"
    fi
}
has() { if grep -qE "$3" "$2" 2>/dev/null; then ok "$1"; else fail "$1" "no \"$3\" in $2"; fi; }

at=$dir/all
runs all_parts 0 '^ok vulkan-prefill-q4_0' "$at"
same parts_that_failed "$(grep -c FAIL "$out")" 0
has the_hosts_time "$at/host.txt" 'room for 0 recordings: 2 submissions, 30.0 us in the median'
has a_summary "$at/summary.txt" 'tg128 12 tokens/s'
has what_was_wanted "$at/summary.txt" '^yes +q4_0: decode, % of memory 56.0, wanted 55'
has what_was_missed "$at/summary.txt" '^NO +q4_0: 32 sequences, times one 7.1, wanted 12'
has of_rows "$at/summary.txt" '^yes +q4_0: prefill, % of mma.sync 41.9, wanted 40'
has hosts_ratio "$at/summary.txt" \
    "^yes +host's time for a token, issued by replayed: 4.0, wanted 3"
has at_once "$at/summary.txt" '^yes +two devices at once, %: 20.0, wanted 1'
has a_report "$at/report.txt" '==== sanitize-racecheck-attn.txt'
has what_is_left_out "$at/summary.txt" '^skip peer: '
n=$(wc -l <"$CALLS")
runs nothing_twice 0 'all is in' "$at"
same calls_of_the_second "$(grep -vc '^devices' <(tail -n +$((n + 1)) "$CALLS"))" 0
runs one_again 0 '^ok decode-q4_0' "$at" decode
same parts_of_it "$(grep -c '^ok' "$out")" 1

at=$dir/short
touch "$SLOW"
LIMIT=62 runs no_time_for_all 75 'more to do' "$at"
rm "$SLOW"
[ -e "$at/ops.txt" ] && [ ! -e "$at/host.txt" ] && ok some_were_done ||
    fail some_were_done "$(ls "$at" | tr '\n' ' ')"
runs the_rest 0 '^ok host' "$at"
same ops_again "$(grep -c '^ok ops ' "$out")" 0

touch "$SLOW"
PART=1 runs one_that_hangs 1 'FAIL ops: not done after 1 s' "$dir/hangs"
rm "$SLOW"
has what_comes_after_it "$dir/hangs/decode-q4_0.txt" '^# status 0'
runs it_is_not_waited_for_again 1 '' "$dir/hangs"
same hangs_again "$(grep -c '^[a-zA-Z]* ops' "$out")" 0

BAD=golden_arch runs one_that_fails 1 'FAIL models-golden_arch .status 1' "$dir/bad"
has others_go_on "$dir/bad/decode-q4_0.txt" '^# status 0'
runs it_still_counts 1 '' "$dir/bad"
runs and_is_mended 0 '^ok models-golden_arch' "$dir/bad" models-golden sanitize-model
mv "$dir/bin/nvidia-smi" "$dir/away/"
command -v nvidia-smi >/dev/null || runs no_gpu 3 'there is no nvidia-smi' "$dir/none"
finish
