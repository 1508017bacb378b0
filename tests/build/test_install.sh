#!/usr/bin/env bash
# In make test alone: it compiles programs.
# What `make install` leaves is enough to build and run the program in pith.h's first comment, with
# the shared and the static library.
. "$(dirname "$0")"/../report.sh

prefix=$dir/usr
# A make of its own: the one that runs the tests keeps its job slots.
fresh_make() { env -u MAKEFLAGS -u MAKELEVEL make B="$B" "$@"; }

if [ ! -x "$B/pith" ] || [ ! -e "$B/libpith.so" ]; then
    skip install "$B holds no whole plain build"
elif ! fresh_make install PREFIX="$prefix" >"$dir/log" 2>&1; then
    fail install "$(grep -m 1 -E 'error|\*\*\*' "$dir/log")"
else
    ok install
    # programs find the library at once; a packager's machine is left as it is
    same install_tells_the_linker "$(fresh_make -n install PREFIX="$prefix" | grep -c ldconfig) \
$(fresh_make -n install PREFIX="$prefix" DESTDIR="$dir/d" | grep -c ldconfig)" "1 0"
    for file in "$B"/*.kernels; do
        [ ! -e "$file" ] || same "installs_${file##*/}" \
            "$(cksum <"$file")" "$(cksum <"$prefix/lib/pith/${file##*/}")"
    done
    sed -n '1,/\*\//s/^ \*     //p' include/pith.h | sed '/^}$/q' >"$dir/example.c"
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    model=$dir/model.gguf
    "$B/pith" synth "$model" >"$dir/log" 2>&1 || fail install_model "$(tail -n 1 "$dir/log")"
    # example NAME COMPILER... : builds it as the words say and runs it on a tiny random model.
    example()
    {
        local name=$1
        shift
        if ! command -v "$1" >/dev/null 2>&1; then
            skip "$name" "$1 is not installed"
        elif ! "$@" -o "$dir/$name" >"$dir/log" 2>&1; then
            fail "$name" "$(grep -m 1 error "$dir/log" || tail -n 1 "$dir/log")"
        elif ! LD_LIBRARY_PATH=$prefix/lib "$dir/$name" "$model" >"$dir/log" 2>&1; then
            fail "$name" "$(tail -n 1 "$dir/log")"
        else
            ok "$name"
        fi
    }
    read -ra flags < <(pkg-config --cflags --libs pith)
    read -ra private < <(pkg-config --static --libs pith | sed "s|-lpith|$prefix/lib/libpith.a|")
    strict=(-Wall -Wextra -Wpedantic -Werror "-I$prefix/include")
    read -ra compiler <<<"${CC:-gcc}"
    example example_c "${compiler[@]}" -std=c11 "${strict[@]}" "$dir/example.c" "${flags[@]}"
    example example_static "${compiler[@]}" -std=c11 "${strict[@]}" "$dir/example.c" "${private[@]}"
    # A start opens what it uses: no TLS, no HTTP client, no line editor (each when a command wants
    # it), and not a library for one hash.
    if [ "$B" != build ] || [ ! -e "$(${CC:-gcc} -print-file-name=libmicrohttpd.a)" ] ||
        [ "$(uname -m)" != x86_64 ]; then
        skip short_ldd "not an ordinary build with libmicrohttpd.a"
    elif ldd "$B/pith" | grep -E "gnutls|curl|p11-kit|idn2|microhttpd|nettle|edit|tinfo|bsd|libmd" \
        >"$dir/log"; then
        fail short_ldd "$(tr '\n' ' ' <"$dir/log")"
    else
        ok short_ldd
    fi
    if fresh_make uninstall PREFIX="$prefix" >"$dir/log" 2>&1 &&
        [ -z "$(find "$prefix" -type f -o -type l)" ]; then
        ok uninstall
    else
        fail uninstall "left: $(find "$prefix" -type f -o -type l | head -n 3 | tr '\n' ' ')"
    fi
fi
finish
