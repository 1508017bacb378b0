#!/usr/bin/env bash
# check_lists.sh -- lists that are written in more than one language, and so in more than one place:
# kernels of GPUs by name and by number, types of a cache, levels of CPUs. What one of them lacks
# shows where there is such a device, and not before.
. "$(dirname "$0")"/rules.sh

gpu=src/backend/gpu cuda=src/backend/cuda shaders=src/backend/vulkan/shaders

# unlike A LIST B LIST: lines that one of two lists has alone, in order. Neither is ever empty.
unlike()
{
    [ -n "$2" ] || echo "no list found: $1"
    [ -n "$4" ] || echo "no list found: $3"
    diff <(echo "$2") <(echo "$4") |
        sed -nE "s#^< (.*)#$1 has \1, $3 has not#p; s#^> (.*)#$3 has \1, $1 has not#p"
}
# macro NAME FILE: what is in the parentheses of its X(..), one a line.
macro()
{
    sed -n "/^#define $1\\b/,/[^\\\\]\$/p" "$2" | grep -oE '[ \t]X\([A-Za-z0-9_]+' | sed 's/.*(//'
}
# "NAME NUMBER" of a list of names; of what is numbered already, from a line of FILE with BEGIN to
# one with END; names of an enum.
numbered() { awk 'NF {print $1, n++}'; }
constants() { sed -n "/$1/,/$2/p" "$3" | grep -oE '[A-Z][A-Z0-9_a-z]* = [0-9]+' | sed 's/ = / /'; }
enumerators() { sed -n "/$1/,/}/p" "$2" | grep -oE '[A-Z][A-Z0-9_a-z]*' | numbered; }
words() { grep -oE '[A-Za-z0-9_]+'; }

# A family without a shader leaves no Vulkan device; one without a function is asked for when a
# plan of CUDA runs.
families=$(macro GPU_FAMILIES $gpu/gpu.h)
own=$(sed -n 's/^#define VK_FAMILY_NAMES //p' src/backend/vulkan/vulkan_impl.h | words)
{
    unlike "the lists of families" "$(printf '%s\n' "$families" "$own" | sort)" $shaders \
        "$(basename -as .comp $shaders/*/*.comp | sort)"
    made=$(sed -nE 's/.*\bKERNEL\(([a-z0-9_]+).*/\1/p' $cuda/kernels/*.cu | sed 's/__*$//')
    for family in $families; do
        grep -qx "$family" <<<"$made" || echo "no file of $cuda/kernels has KERNEL($family"
    done
} | rule families_have_kernels

# Numbers that a kernel is told.
{
    rows=$(macro ROWS_OPS $gpu/ops.c | numbered)
    unlike "ROWS_OPS of $gpu/ops.c" "$rows" rows.comp \
        "$(constants 'const int ADD = 0' ';' $shaders/rows/rows.comp)"
    unlike "ROWS_OPS of $gpu/ops.c" "$rows" rows.cu \
        "$(enumerators '^ *ADD,' $cuda/kernels/rows.cu)"
} | rule ops_of_rows_have_one_number
types=$(macro TYPES $gpu/ops.c)
{
    unlike "TYPES of $gpu/ops.c" "$(numbered <<<"$types")" types.glsl \
        "$(constants 'const int T_F32 = 0' ';' $shaders/shared/types.glsl | sed 's/^T_//')"
    unlike "TYPES of $gpu/ops.c" "$(numbered <<<"$types")" types.cuh \
        "$(enumerators '^ *T_F32,' $cuda/kernels/types.cuh | sed 's/^T_//')"
} | rule types_have_one_number
{
    acts=$(sed -n '/int8_t acts\[/,/};/p' $gpu/ops.c | grep -oE '= [0-9]+' |
        awk '{print $2 - 1}' | sort -n)
    # Two are what is left when it is none of the others: xielu, and of those with limits oai.
    for file in $shaders/shared/act.glsl $cuda/kernels/common.cuh; do
        unlike "acts of $gpu/ops.c" "$acts" "$file" "$({
            printf '%s\n' 11 14
            sed -n '/float act_of(/,/float joined(/p' "$file" |
                grep -oE '(case|==) [0-9]+' | grep -oE '[0-9]+'
        } | sort -n)"
    done
} | rule activations_have_one_number

# Types with products: those in blocks are coded.
blocks=$(sed -nE 's/^X\(([A-Z0-9_]+), *"([^"]*)", *[0-9]+, *([0-9]+),.*/\1 \2 \3/p' \
    src/tensor/dtypes.def | awk '$3 > 1' | while read -r type name _; do
    grep -qx "$type" <<<"$types" && echo "$name"
done | sort)
{
    unlike "TYPES of $gpu/ops.c" "$blocks" "CODED_TYPES of products.cuh" \
        "$(macro CODED_TYPES $cuda/kernels/products.cuh | sort)"
    unlike "TYPES of $gpu/ops.c" "$blocks" tests/backend/test_nvcc.sh \
        "$(sed -nE "s/^coded='(.*)'/\1/p; s/^coded=\"\\\$coded(.*)\"/\1/p" \
            tests/backend/test_nvcc.sh | words | sort)"
} | rule coded_types_have_products

# What the program takes for --cache-type-k.
unlike "KV_TYPES of src/graph/kv_page.h" \
    "$(macro KV_TYPES src/graph/kv_page.h | tr '[:upper:]' '[:lower:]')" \
    "CACHE_TYPES of cli/cli.h" \
    "$(sed -nE 's/^#define CACHE_TYPES "(.*)"/\1/p' cli/cli.h | words)" |
    rule cache_types_are_offered

# Levels, each in every place that names them.
levels=$(sed -n '/names\[CPU_N_LEVELS\]/,/};/p' src/base/machine/cpu.c | grep -oE '"[a-z0-9]+"' |
    tr -d '"')
plain=$(grep -vx ref <<<"$levels") # the reference is no level to compile for
{
    unlike "names of cpu.c" "$levels" "enum cpu_level" \
        "$(sed -n '/^enum cpu_level {/,/CPU_N_LEVELS/p' src/base/machine/cpu.h |
            sed -nE 's/^ *CPU_([A-Z0-9]+),.*/\1/p' | tr '[:upper:]' '[:lower:]')"
    unlike "names of cpu.c" "$levels" scripts/record_bits.sh \
        "$(sed -n 's/^for l in \(.*\); do$/\1/p' scripts/record_bits.sh | words)"
    unlike "names of cpu.c" "$plain" cli/args/man.c \
        "$(sed -n '/highest instruction set to use:/,/\.SH/p' cli/args/man.c |
            sed 's/\\n"//; s/^[^:]*: //; s/\bor\b//; /SH/d' | words)"
    for level in $(grep -vx base <<<"$plain"); do
        grep -q "&kern_mm_$level\b" src/backend/cpu/kern_mm.c ||
            echo "src/backend/cpu/kern_mm.c has no row of $level"
        sed -n '/^x86_flags /,/^isa_flags /p' Makefile | grep -q "%_$level\.c" ||
            [ "$level" = neon ] ||
            echo "x86_flags or arm_flags of the Makefile has nothing for *_$level.c"
        grep -q "\.cpu = \"$level\"" tests/run/test_bits.c ||
            sed -n 's/^ *for level in \(.*\); do$/\1/p' tests/backend/test_arm.sh |
            grep -qw "$level" || echo "no test of bits runs $level (tests/run/test_bits.c, ways)"
    done
} | rule levels_are_named_everywhere

rules_end
