#!/usr/bin/env bash
# In make test alone: make check has no GPU.
# test_nvcc.sh -- the kernels of the CUDA backend by CUDA's own compiler, where it is: without a
# warning, for the newest generation, and files that ask for a generation for the oldest, too; every
# kernel that the host can ask for is there. What 9.0 alone has is made into machine code, and fits
# into what a multiprocessor has. And the driver's functions as we declare them beside CUDA's own
# header. TEST_SCALE=1: one file; from 100 on they are optimised as in a build, and files that ask
# for no generation are for the oldest.
. "$(dirname "$0")"/../report.sh

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
needs kernels "$nvcc"
folder=src/backend/cuda
types='f32 f16 bf16'
coded='q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs mxfp4 iq2_xxs iq2_xs iq2_s'
coded="$coded iq3_xxs iq3_s iq1_s iq1_m tq1_0 tq2_0 nvfp4 q1_0 q2_0"

# What a file has to have besides a kernel of its own name, for a generation.
wanted()
{
    case $1 in
    matmul) for t in $types $coded; do for n in 1 4 8; do echo "matmul_${t}_$n"; done; done ;;
    dp4a) echo quantise; for t in $coded; do for n in 1 4 8; do echo "dp4a_${t}_$n"; done; done ;;
    half) echo halve; for t in f16 bf16; do for n in 32 128; do echo "half_${t}_$n"; done; done ;;
    wgmma) for t in f16 bf16; do for n in 128 256; do echo "wgmma_${t}_$n"; done; done ;;
    flash) for t in f16 bf16 rows; do for n in 64 80 96 128 192 256; do
        printf '%s\n' "flash_${t}_$n" "flash_few_${t}_$n"; done; done
        printf '%s\n' flash_latent_f16 flash_latent_bf16
        [ "$2" != 90a ] || for n in 64 128 256; do
            printf '%s\n' "flash_wide_f16_$n" "flash_wide_bf16_$n"; done ;;
    mma) for t in $coded; do echo "mma_$t"; done ;;
    attn) for n in 1 2 4 8 16; do printf '%s\n' "attn_$n" "attn_merge_$n" "attn_states_$n"; done ;;
    stream) printf '%s\n' stream grid adapt ;;
    tokens) printf '%s\n' tokens compress ;;
    scan) printf '%s\n' conv ssm linear ;;
    moe) printf '%s\n' topk moe_sort ;;
    move) printf '%s\n' embed columns pool ;;
    cache_write) printf '%s\n' cache_write attn_enter ;;
    rope) printf '%s\n' rope rope_table hadamard ;;
    *) echo "$1" ;;
    esac
}

# driver.h and CUDA's header.
cuda=$(dirname "$(dirname "$(realpath "$(command -v "$nvcc")")")")
sed -n 's/.*X(\([a-z_]*\), "\(cu[A-Za-z0-9_]*\)",.*/SAME(\1, \2)/p' "$folder/driver.h" \
    >"$dir/functions.inc"
n=$(grep -c . "$dir/functions.inc")
same functions_are_listed "$n" "$(grep -c '"cu[A-Z]' "$folder/driver.h")"
if [ ! -e "$cuda/include/cuda.h" ]; then
    skip functions "there is no $cuda/include/cuda.h"
elif "${CXX:-g++}" -std=c++17 -fsyntax-only -Isrc -I"$dir" -I"$cuda/include" \
    tests/backend/cuda/header.cpp 2>"$err"; then
    ok "functions of the driver: $n"
else
    fail functions "$(grep -m 1 error "$err")"
fi

for file in "$folder"/kernels/*.cu; do
    name=$(basename "$file" .cu)
    [ "${TEST_SCALE:-1}" -ge 10 ] || [ "$name" = rope ] || continue
    [ "${TEST_SCALE:-1}" -ge 100 ] && effort=3 || effort=1
    case $name in
    flash) archs='75 90 90a' ;;
    mma | half) archs='75 90' ;; # they ask for a generation, by way of tensor.cuh, too
    wgmma) archs=90a ;;
    *) [ "${TEST_SCALE:-1}" -ge 100 ] && archs=75 || archs=90 ;; # one is as good as the other
    esac
    for arch in $archs; do
        if ! "$nvcc" -ptx -arch=compute_$arch -std=c++17 -O3 -Xcicc -O$effort --fmad=false \
            -Werror all-warnings \
            -o "$dir/$name.ptx" "$file" 2>"$err"; then
            fail "$name for $arch" "$(head -n 1 "$err")"
            continue
        fi
        sed -n 's/.*\.entry pith_\([A-Za-z0-9_]*\).*/\1/p' "$dir/$name.ptx" | sort >"$out"
        wanted "$name" "$arch" | sort >"$dir/wanted"
        same "kernels of $name for $arch" "$(tr '\n' ' ' <"$out")" "$(tr '\n' ' ' <"$dir/wanted")"
    done
done

# And by way of the Makefile, for all generations.
if [ "${TEST_SCALE:-1}" -ge 10 ]; then
    if env -u MAKEFLAGS -u MAKELEVEL make -s CUDA=1 B="$dir/made" "$dir/made/cuda/rope.fatbin" \
        >"$err" 2>&1; then
        ok a_file_for_every_generation
    else
        fail a_file_for_every_generation "$(grep -m 1 . "$err")"
    fi
fi

# What wgmma.cu is for: two blocks of 288 threads on a multiprocessor, or one with wide tiles; sums
# that stay in registers; products that the compiler does not part. Other generations have a file
# without it.
if [ "${TEST_SCALE:-1}" -ge 10 ]; then
    "$nvcc" -cubin -arch=sm_90a -std=c++17 -O3 --fmad=false -Xptxas -v -o "$dir/wgmma.cubin" \
        "$folder/kernels/wgmma.cu" 2>"$err" || fail wgmma_is_compiled "$(head -n 1 "$err")"
    same wgmma_spills_nothing "$(grep -c ' 0 bytes spill stores, 0 bytes spill loads' "$err")" 4
    same wgmma_has_registers "$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$err" |
        awk '$1 <= 112 { narrow++ } $1 <= 224 { n++ } END { print narrow, n }')" "2 4"
    same wgmma_is_not_serialised "$(grep -ci 'serializ\|inject\|warning' "$err")" 0
    # Attention by it: sums stay in registers but for a few bytes of heads of 64, of which two
    # blocks are on a multiprocessor.
    "$nvcc" -cubin -arch=sm_90a -std=c++17 -O3 --fmad=false -Xptxas -v -o "$dir/flash.cubin" \
        "$folder/kernels/flash.cu" 2>"$err" || fail flash_is_compiled "$(head -n 1 "$err")"
    same flash_wide_spills_next_to_nothing "$(grep -A 1 'properties for pith_flash_wide' "$err" |
        awk '/spill/ { n++; bad += $5 > 64 } END { print n + 0, bad + 0 }')" "6 0"
    same flash_wide_is_not_serialised "$(grep -ci 'serializ\|inject' "$err")" 0
    for arch in 75 90; do
        "$nvcc" -cubin -arch=sm_$arch -std=c++17 -Werror all-warnings -o "$dir/none.cubin" \
            "$folder/kernels/wgmma.cu" 2>"$err" || fail "wgmma for $arch" "$(head -n 1 "$err")"
    done
fi
finish
