#!/usr/bin/env bash
# In make test alone: it takes long at any scale.
# test_example.sh -- the program in pith.h's first comment: taken out of the header, built with
# build/libpith.a by C and C++ compilers that are strict, run on a synthetic model of every
# architecture, on no model, and on a trained one whose text is known.
. "$(dirname "$0")"/../report.sh
needs example "$pith"

sed -n '/^#ifndef PITH_H/q; s/^ \*     //p' include/pith.h | sed '/^}$/q' >"$dir/example.c"
if [ "$(grep -c 'int main' "$dir/example.c")" -eq 1 ] &&
    [ "$(grep -c '^}$' "$dir/example.c")" -eq 1 ]; then
    ok example_is_there
else
    fail example_is_there "no whole program in the first comment of include/pith.h"
fi

# What a program that links the archive needs besides it.
read -ra packages < <(sed -n 's/^PKGS *?= *//p' Makefile)
read -ra libs < <(pkg-config --libs "${packages[@]}")
libs+=(-lm -pthread)
strict=(-Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude)
programs=()
# build NAME COMPILER FLAG...
build()
{
    local name=$1
    shift
    if ! command -v "$1" >/dev/null 2>&1; then
        skip "$name" "$1 is not installed"
    elif "$@" "${strict[@]}" -o "$dir/$name" "$dir/example.${name%%[0-9]*}" "$B/libpith.a" \
        "${libs[@]}" >"$dir/log" 2>&1; then
        ok "$name"
        programs+=("$name")
    else
        fail "$name" "$(grep -m 1 -E 'error|undefined' "$dir/log" || tail -n 1 "$dir/log")"
    fi
}
if nm "$B/libpith.a" 2>/dev/null | grep -q -E '__(asan|ubsan|tsan)_'; then
    skip_all programs "this build's archive needs the runtime of a sanitizer"
fi
cp "$dir/example.c" "$dir/example.cxx"
for compiler in gcc clang; do
    build "c11_$compiler" $compiler -std=c11
done
for compiler in g++ clang++; do
    build "cxx11_$compiler" $compiler -std=c++11
    build "cxx20_$compiler" $compiler -std=c++20
done

text=$shared/vectors/models/stories260K.gguf
for arch in llama qwen2 qwen3 gemma2 gemma3; do
    "$B/pith" synth "$dir/$arch.gguf" --arch $arch >"$dir/log" 2>&1 ||
        fail "synth_$arch" "$(tail -n 1 "$dir/log")"
done
for p in "${programs[@]}"; do
    for arch in llama qwen2 qwen3 gemma2 gemma3; do
        if timeout 60 "$dir/$p" "$dir/$arch.gguf" >"$dir/out" 2>"$dir/err" && [ -s "$dir/out" ] &&
            [ ! -s "$dir/err" ]; then
            ok "${p}_$arch"
        else
            fail "${p}_$arch" "status $?: $(head -c 200 "$dir/err")"
        fi
    done
    if timeout 60 "$dir/$p" "$dir/absent.gguf" >"$dir/out" 2>"$dir/err"; then
        fail "${p}_no_model" "went well without a model"
    elif [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q 'absent.gguf.*No such file' "$dir/err"; then
        ok "${p}_no_model"
    else
        fail "${p}_no_model" "said \"$(head -c 200 "$dir/err")\""
    fi
    if [ ! -r "$text" ]; then
        skip "${p}_text" "no vectors/models in the shared data"
    elif [ "$("$dir/$p" "$text")" = "$("$B/pith" run "$text" -p 'Once upon a time' -n 32 --temp 0 \
        </dev/null)" ]; then
        ok "${p}_text"
    else
        fail "${p}_text" "said \"$("$dir/$p" "$text" | head -c 100)\""
    fi
done
finish
