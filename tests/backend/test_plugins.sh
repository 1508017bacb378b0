#!/usr/bin/env bash
# In make test alone: make check has no GPU.
# test_plugins.sh -- kernels of GPUs as files beside the program, as a user meets them: what `pith
# devices` says when one is absent, foreign or damaged, that the CPU goes on, and that programs with
# libpith.so or libpith.a look for them beside what holds the library. What stands in for CUDA's
# driver plays the device (tests/backend/cuda); Vulkan's is Mesa's.
. "$(dirname "$0")"/../report.sh

driver=$(realpath -m "$B")/tests/cuda-driver.so
kernels=$(realpath -m "$B")/tests/cuda-kernels.so
[ -x "$pith" ] && [ -e "$driver" ] ||
    skip_all plugins "the program or the driver's stand-in is not built"
build=$(sed -n 's/.*cuda //p' "$B/plugins")
model=$dir/model.gguf
"$pith" synth "$model" >"$out" 2>&1 || fail model "$(tail -n 1 "$out")"
mkdir -p "$dir/usr/bin" "$dir/usr/lib/pith" "$dir/else"
cp "$pith" "$dir/usr/bin/pith"
pith=$dir/usr/bin/pith
export PITH_CUDA_LIBRARY=$driver

# plugin FILE BUILD [CONTENT]: of CUDA
plugin()
{
    printf '%s\n' "${3:-$kernels}" >"$dir/toy.fatbin"
    packaging/plugin.sh "$1" cuda "$2" 12040 "$dir/toy.fatbin"
}

# ---------------------------------------------------------------- CUDA

absent="there is no pith-cuda.kernels in $dir/usr/bin, none in $dir/usr/lib/pith, and"
PITH_CUDA_DEVICES=0 gives absent 0 "CUDA: $absent PITH_PLUGINS names no folder" devices
PITH_CUDA_DEVICES=0 gives the_cpu_is_listed 0 '^CPU ' devices
PITH_CUDA_DEVICES=0 gives absent_json 0 "\"error\": \"CUDA: $absent" devices --json
PITH_CUDA_DEVICES=0 PITH_PLUGINS=$dir/else gives absent_there_too 0 \
    "$absent none in PITH_PLUGINS=$dir/else" devices
PITH_CUDA_DEVICES=0 gives the_cpu_goes_on 0 "$absent .*: it is not used" run "$model" -p a -n 2
PITH_CUDA_DEVICES=0 gives it_was_asked_for 2 "$absent" run "$model" -p a -n 2 --device cuda0

plugin "$dir/else/pith-cuda.kernels" "$build"
PITH_CUDA_DEVICES=0 PITH_PLUGINS=$dir/else gives found_where_it_was_said 0 '^cuda0 ' devices
mv "$dir/else/pith-cuda.kernels" "$dir/usr/lib/pith/"
PITH_CUDA_DEVICES=0 gives found_in_lib 0 '^cuda0 ' devices
mv "$dir/usr/lib/pith/pith-cuda.kernels" "$dir/usr/bin/"
PITH_CUDA_DEVICES=0 gives found_beside_it 0 '^cuda0 ' devices
PITH_CUDA_DEVICES=0 gives its_kernels_run 0 '' run "$model" -p a -n 2 --device cuda0 -ngl all -v
if grep -q 'cuda' "$err" "$out"; then ok and_the_report_says_so; else
    fail and_the_report_says_so "$(tail -n 3 "$err")"; fi

own=$dir/usr/bin/pith-cuda.kernels
# one NAME PATTERN: the device is named with what is wrong, and the CPU goes on
one()
{
    PITH_CUDA_DEVICES=0 gives "$1" 0 "cuda0: .*$2" devices
    PITH_CUDA_DEVICES=0 gives "$1_and_the_cpu_goes_on" 0 "$2.*: it is not used" run "$model" \
        -p a -n 2
}
head -c 100 "$own" >"$dir/cut" && mv "$dir/cut" "$own"
one truncated "$own is damaged: it has 52 bytes behind its first line"
plugin "$own" 0123456789abcdef
one foreign "$own is of another build: its kernels are 0123456789abcdef, this program's are $build"
plugin "$own" "$build" "no library"
one no_kernels "toy are no kernels for"
cp "$driver" "$own"
one a_library "$own holds no kernels of pith"
rm "$own" && mkdir "$own"
one a_folder "$own is no regular file"
rmdir "$own"

# ---------------------------------------------------------------- lists that cannot be read

for name in CUDA VULKAN; do
    for list in x 0,x 0, ,0 -1 0,,0 0,1,2,3,4,5,6,7 99999999999999999999; do
        [ $name = CUDA ] || grep -q WITH_VULKAN "$B/flags" || continue
        wrong="PITH_${name}_DEVICES is \"$list\"; wanted at most 7 numbers of devices"
        export PITH_${name}_DEVICES=$list
        gives "list_${name}_$list" 0 "$wrong" devices
        gives "model_${name}_$list" 2 "$wrong" run "$model" -p a -n 2
        gives "cpu_${name}_$list" 0 '' run "$model" -p a -n 2 --device CPU
        unset PITH_${name}_DEVICES
    done
done
for list in x 1x -1 8; do
    wrong="PITH_FAR_DEVICES is \"$list\"; wanted a whole number from 0 to 7"
    PITH_FAR_DEVICES=$list gives "list_far_$list" 0 "$wrong" devices
    PITH_FAR_DEVICES=$list gives "model_far_$list" 2 "$wrong" run "$model" -p a -n 2
done
PITH_CPU_DEVICES=0 gives list_cpu 0 'PITH_CPU_DEVICES is "0"' devices
PITH_CPU_DEVICES=0 gives model_cpu 2 'PITH_CPU_DEVICES is "0"' run "$model" -p a -n 2

# ---------------------------------------------------------------- programs with the library

cat >"$dir/user.c" <<'END'
#include <pith.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    for (int32_t i = 0; i < pith_n_devices(); i++) {
        struct pith_device_info d = PITH_DEVICE_INFO_INIT;
        struct pith_error err;
        memset(&err, 85, sizeof err);
        puts(pith_device_get(i, &d, &err) == PITH_OK ? d.name : err.msg);
    }
    return 0;
}
END
read -ra compiler <<<"${CC:-gcc}"
read -ra libs < <(pkg-config --libs libpcre2-8 libutf8proc jansson libxxhash)
export PITH_CUDA_DEVICES=0
if [ ! -e "$B/libpith.so" ] || [ ! -e "$B/libpith.a" ] || [ "$B" != build ]; then
    skip library "$B holds no whole plain build"
else
    cp "$B/libpith.so" "$dir/usr/lib/libpith.so.0"
    "${compiler[@]}" -Iinclude -o "$dir/else/shared" "$dir/user.c" "$dir/usr/lib/libpith.so.0" \
        2>"$err" || fail shared "$(head -n 1 "$err")"
    "${compiler[@]}" -Iinclude -o "$dir/else/static" "$dir/user.c" "$B/libpith.a" "${libs[@]}" \
        -lm -ldl -pthread 2>"$err" || fail static "$(head -n 1 "$err")"
    # program NAME FOLDER: it looks there
    program()
    {
        LD_LIBRARY_PATH=$dir/usr/lib "$dir/else/$1" >"$out" 2>&1
        same "$1_has_the_cpu" "$(head -n 1 "$out")" CPU
        if grep -q "there is no pith-cuda.kernels in $2, none in ${2%/*}/lib/pith" "$out"; then
            ok "$1_looks_beside"; else fail "$1_looks_beside" "$(cat "$out")"; fi
        plugin "$2/pith-cuda.kernels" "$build"
        same "$1_finds_it" "$(LD_LIBRARY_PATH=$dir/usr/lib "$dir/else/$1" 2>&1 | tail -n 1)" cuda0
        rm "$2/pith-cuda.kernels"
    }
    program shared "$dir/usr/lib"
    program static "$dir/else"
    # Called by its bare name, from another folder.
    same by_name "$(cd / && PATH=$dir/else:$PATH static | grep -o "kernels in $dir/else,")" \
        "kernels in $dir/else,"
fi
unset PITH_CUDA_DEVICES

# ---------------------------------------------------------------- Vulkan

if [ ! -e "$B/pith-vulkan.kernels" ]; then
    skip vulkan "its kernels are not built"
    finish
fi
export PITH_VULKAN_DEVICES=0
"$pith" devices >"$out" 2>"$err"
if ! grep -q '^pith.*vulkan0 (' "$err"; then
    skip vulkan "hardware: $(tail -n 1 "$err")"
    finish
fi
gives vulkan_absent 0 "vulkan0 .*: there is no pith-vulkan.kernels in $dir/usr/bin, none in" devices
cp "$B/pith-vulkan.kernels" "$dir/usr/lib/pith/"
gives vulkan_found 0 '^vulkan0 ' devices
own=$dir/usr/lib/pith/pith-vulkan.kernels
head -c 100000 "$B/pith-vulkan.kernels" >"$own"
gives vulkan_truncated 0 "vulkan0 .*: $own is damaged" devices
gives vulkan_truncated_and_the_cpu_goes_on 0 "$own is damaged.*: it is not used" run "$model" \
    -p a -n 2
packaging/plugin.sh "$own" vulkan "$(sed -n 's/vulkan \([^ ]*\).*/\1/p' "$B/plugins")" 0 \
    "$dir/toy.fatbin"
gives vulkan_without_some 0 'pith-vulkan.kernels has no [a-z]' devices
finish
