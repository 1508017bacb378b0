#!/usr/bin/env bash
# In make test alone: make check has no GPU.
# test_shaders.sh -- every shader of the Vulkan backend is valid for Vulkan 1.2, and asks for
# nothing but what devices are held to (NEEDED in device.c); scripts/check_lists.sh looks whether
# the lists name them all. In make check the build alone compiles most of them; every fourth is
# looked at here.
. "$(dirname "$0")"/../report.sh

needs shaders glslc spirv-val spirv-dis
folder=src/backend/vulkan
# What each capability of a shader stands for there.
known='Shader|Int8|Int16|Int64|PhysicalStorageBufferAddresses|StorageBuffer8BitAccess'
known="$known|StorageBuffer16BitAccess|UniformAndStorageBuffer8BitAccess"
known="$known|UniformAndStorageBuffer16BitAccess"
# Those of one family are asked for before (choose_products).
dot='DotProduct|DotProductInput4x8BitPacked'

i=0
for file in "$folder"/shaders/*/*.comp; do
    name=$(basename "$file" .comp)
    i=$((i + 1))
    if [ "${TEST_SCALE:-1}" -lt 10 ] && [ $((i % 4)) -ne 0 ]; then
        :
    elif ! glslc -O -Werror -std=460 --target-env=vulkan1.2 -I "$folder/shaders/shared" \
        "$file" -o "$dir/$name.spv" 2>"$err"; then
        fail "$name" "$(head -n 1 "$err")"
    elif ! spirv-val --target-env vulkan1.2 "$dir/$name.spv" >"$out" 2>&1; then
        fail "$name" "$(head -n 1 "$out")"
    else
        other=$(spirv-dis "$dir/$name.spv" | awk '$1 == "OpCapability" {print $2}' |
            grep -vxE "$known$([[ "$name" = dp4a*_dot ]] && echo "|$dot")" | tr '\n' ' ')
        if [ -n "$other" ]; then fail "$name" "needs $other"; else ok "$name"; fi
    fi
done
finish
