#!/usr/bin/env bash
# check_symbols.sh -- what the built library shows and what it needs.
. "$(dirname "$0")"/rules.sh

so=$B/libpith.so archive=$B/libpith.a
if [ ! -e "$so" ] || [ ! -e "$archive" ]; then
    rule_skipped symbols "$B/libpith.so is not built"
    rules_end
    exit
fi

exported=$(nm -D --defined-only "$so" | awk '{print $3}' | sort)
{ echo "$exported"; nm -g --defined-only "$archive" | awk 'NF == 3 {print $3}'; } | grep . |
    grep -v '^pith_' | sort -u |
    sed 's/$/ is exported/' | rule exports_only_pith
grep -ohE '\bpith_[a-z0-9_]+\(' <(sed -n 's/^PITH_API//p' include/pith.h include/pith/*.h) |
    tr -d '(' | sort -u |
    comm -23 - <(echo "$exported") |
    sed 's/$/ is declared in pith.h and not there/' | rule everything_declared_is_there
readelf -d "$so" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' |
    grep -vE '^(libc|libm|libpthread|libpcre2-8|libutf8proc|libjansson|libxxhash|ld-linux.*)\.so' |
    sed 's/^/needs /' | rule needs_only_known_libraries

# Undefined symbols as "object symbol": the laws of check_forbidden.sh again, where no macro can
# hide a call.
ends='abort|_?exit|_Exit|__assert_fail'
heap='malloc|calloc|realloc|free|strn?dup|posix_memalign|aligned_alloc'
sed -E "s|(.*)\.c$|$B/obj/\1.o|" "$B/members" | xargs -r nm -A -u |
    sed -E "s|^$B/obj/||; s|:[ \t]*[A-Za-z] | |" |
    grep -E " ($ends|v?printf|__v?printf_chk|puts|putchar|perror|stdout|(secure_)?getenv|$heap)$" |
    grep -vE "^src/base/mem\.o ($heap)$|^src/base/env\.o (secure_)?getenv$" |
    rule objects_call_nothing_forbidden

# Kernel objects: compiled above the baseline, so they call nothing but what moves bytes and the
# products of a level below, and show one table.
for o in "$B"/obj/src/backend/cpu/{x86,arm}/*.o; do
    nm -u "$o" | awk -v o="${o##*/}" \
        '$2 !~ /^(memcpy|memmove|memset|_GLOBAL_OFFSET_TABLE_|kern_mm_[a-z0-9]+)$/ {
            print o " needs " $2
        }'
    nm -g --defined-only "$o" | awk -v o="${o##*/}" \
        '$2 !~ /[RrDd]/ {print o " shows " $3}
         $2 ~ /[RrDd]/ {n++}
         END {if (n != 1) print o " shows " n + 0 " tables, not 1"}'
done | rule kernel_objects_stand_alone

# Files of one room that call each other, each the other: no part of such a loop can be understood
# by itself. Rooms are the folders of src, the program and the server, each with all that is in it.
# What code names counts (relocations of code), not what tables name: rows of ops and
# architectures, a backend's functions, handlers. Objects as "object symbol" of what they have and
# of what they want, joined.
find "$B/obj" -name '*.o' | sed "s|^$B/obj/||; s|\.o$||" | grep -E '^(src|cli|server)/' |
    while read -r o; do [ ! -e "$o.c" ] || echo "$B/obj/$o.o"; done | sort >"$B/.objects"
{
    xargs -r nm -A --defined-only <"$B/.objects" |
        sed -nE "s|^$B/obj/||; s|\.o:[0-9a-f ]* ([TDRBVW]) | has |p"
    xargs -r readelf -rW <"$B/.objects" | awk -v b="$B/obj/" '
        $1 == "File:" { o = substr($2, length(b) + 1); sub(/\.o$/, "", o) }
        /^Relocation section/ { code = $3 ~ /^.\.rela\.text/ }
        code && $3 ~ /^R_/ { print o, "wants", $5 }'
} | awk '
        function room(o,    part)
        {
            split(o, part, "/")
            return part[1] == "src" ? part[2] : part[1]
        }
        $2 == "has" {has[$3] = $1}
        $2 == "wants" {wants[n] = $3; by[n++] = $1}
        END {
            for (i = 0; i < n; i++) {
                to = has[wants[i]]
                if (to != "" && by[i] != to && room(by[i]) == room(to))
                    print by[i], to
            }
        }' | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: //' | rule no_loop_of_files

if [ -e "$B/pith" ]; then
    strip -o "$B/.stripped" "$B/pith" && stat -c '%s' "$B/.stripped" |
        awk '$1 >= 5e6 {print $1 " bytes, 5 MB wanted"}' | rule binary_under_5_mb
    rm -f "$B/.stripped"
else
    rule_skipped binary_under_5_mb "$B/pith is not built"
fi
rules_end
