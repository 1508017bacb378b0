#!/usr/bin/env bash
# test_arm.sh -- AArch64 under qemu-user: the kernels of products, and whole models at every level,
# whose logits are this machine's, byte for byte. `make arm` runs the other kernels, too.
#
# From make test on: it takes as long as the build, which goes to build-arm. Without the cross
# compiler or the emulator it is skipped.
. "$(dirname "$0")"/../report.sh
golden=$shared/golden
[ "${TEST_SCALE:-1}" -ge 10 ] && [ "${TEST_RULES:-1}" != 0 ] ||
    skip_all arm_models "only in make test and make soak"
needs arm_models aarch64-linux-gnu-gcc qemu-aarch64 "$pith"
[ -d "$golden" ] || skip_all arm_models "no golden models in the shared data"
# Optimized as it is handed out in make soak: it takes the longest time of all tests.
[ "$TEST_SCALE" -ge 100 ] || export ARM_CFLAGS=-O1
if ! env -u MAKEFLAGS -u MAKELEVEL -u CC make arm-program >"$dir/log" 2>&1; then
    fail arm_builds "$(grep -m 1 -E 'error|warning|undefined' "$dir/log" || tail -n 1 "$dir/log")"
    finish
fi
ok arm_builds
if TEST_SCALE=1 qemu-aarch64 -cpu max build-arm/tests/test_mm >"$dir/log" 2>&1; then
    ok arm_products
else
    fail arm_products "$(grep -m 1 '^FAIL' "$dir/log" || tail -n 1 "$dir/log")"
fi

# 16 tokens in steps of 11 and 5: pieces of one to eight columns. f32; the norms, activations and
# routing of other families; every packed type.
tokens=1,9,17,25,33,41,49,57,2,10,18,26,34,42,50,58
models=(arch/{llama,gemma3,qwen3moe}
    quant/llama-q.{f16,bf16,q8_0,q4_0,q4_1,q5_0,q5_1,iq4_nl,mxfp4,iq4_xs,Q4_K_M-mix}
    quant/llama-q.{q2_K,q3_K_S,q4_K_S,q5_K_S,q6_K}
    quant/llama-q.{iq1_s,iq1_m,iq2_xs,iq3_s,nvfp4,q1_0,q2_0,tq1_0,tq2_0})
# with these instructions and no more
declare -A cpu=([neon]=cortex-a57 [dotprod]=cortex-a76 [i8mm]=max [bf16]=max)
for m in "${models[@]}"; do
    "$pith" logits "$golden/$m.gguf" --tokens $tokens --chunk 11 --out "$dir/want" >"$dir/log" \
        2>&1 ||
        fail "native_${m##*/}" "$(tail -n 1 "$dir/log")"
    for level in neon dotprod i8mm bf16; do
        [ $level != bf16 ] || [[ $m == *.bf16 ]] || continue # it has these products alone
        name=${level}_${m##*/}
        if ! PITH_CPU=$level qemu-aarch64 -cpu ${cpu[$level]} build-arm/pith logits \
            "$golden/$m.gguf" --tokens $tokens \
            --chunk 11 --out "$dir/got" >"$dir/log" 2>&1; then
            fail "$name" "$(tail -n 1 "$dir/log")"
        elif cmp "$dir/want" "$dir/got" >"$dir/log" 2>&1; then
            ok "$name"
        else
            fail "$name" "$(sed 's/.* differ:/the logits differ:/' "$dir/log")"
        fi
        rm -f "$dir/got"
    done
done
finish
