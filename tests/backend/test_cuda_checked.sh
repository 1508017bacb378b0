#!/usr/bin/env bash
# In make test alone: make check has no GPU.
# test_cuda_checked.sh -- ops and models on the CUDA backend with kernels on the host whose accesses
# are looked at (cuda/checks.cpp): what races, what is behind an end, what was never written. And
# with a stand-in of the driver that does its work at other times than when somebody waits.
. "$(dirname "$0")"/../report.sh

for name in test_cuda test_cuda_ops test_cuda_attn; do
    [ -x "$B/tests/$name" ] || skip_all checked "there is no $B/tests/$name"
done

# passes NAME VARIABLE=VALUE... PROGRAM: its tests all pass.
passes()
{
    local name=$1
    shift
    env "$@" >"$out" 2>"$err"
    if [ $? -eq 0 ] && tail -n 1 "$out" | grep -qE '^[1-9][0-9]* passed, 0 failed'; then
        ok "$name"
    else
        fail "$name" "$(cat "$err" "$out" | grep -E 'on the host|^FAIL' | head -n 3 | tr '\n' ' ')"
    fi
}

checked=STANDIN_KERNELS=cuda-checked.so
passes ops "$checked" "$B/tests/test_cuda_ops"
passes attention "$checked" TEST_SCALE=1 "$B/tests/test_cuda_attn"
for seed in 2 1 3; do
    [ $seed = 2 ] || [ "${TEST_SCALE:-1}" -ge 100 ] || break
    passes "order_$seed" STANDIN_ORDER=$seed TEST_SCALE=1 "$B/tests/test_cuda"
done
passes models "$checked" TEST_SCALE=1 TEST_ONLY=golden "$B/tests/test_cuda"
[ "${TEST_SCALE:-1}" -lt 100 ] ||
    passes products "$checked" TEST_SCALE=1 TEST_ONLY=products "$B/tests/test_cuda"
finish
