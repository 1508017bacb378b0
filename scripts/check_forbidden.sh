#!/usr/bin/env bash
# check_forbidden.sh -- what the library must not contain (law 1: input cannot kill us), and the
# limits of size.
. "$(dirname "$0")"/rules.sh

lib=(src/**/*.{c,h,inl})
ours=({src,include,cli,server,tools,tests,fuzz,bench}/**/*.{c,h,inl,def})
lib_code=$(code "${lib[@]}")

# calls WORDS [FILE-PATTERN]: calls of these functions outside the files that may; x->free(...) and
# declarations of pointers are none.
calls() { grep -E "(^|[^A-Za-z0-9_.>])($1) *\(" <<<"$lib_code" | grep -vE "^(${2:-no file}):" |
    sed -E 's/: +/: /g'; }

calls 'abort|_?exit|_Exit|quick_exit|assert|raise|__builtin_trap' | rule no_way_to_die
calls 'v?f?printf|puts|fputs|putc|putchar|fputc|perror|v?dprintf|write' 'src/base/machine/file\.c' |
    rule no_output
calls 'getenv|secure_getenv|setenv|putenv|unsetenv' 'src/base/env\.c' |
    rule environment_in_one_place
heap='malloc|calloc|realloc|reallocarray|free|strn?dup|v?asprintf|aligned_alloc|posix_memalign'
calls "$heap|memalign|alloca|__builtin_alloca|getline|getdelim|open_memstream" \
    'src/base/mem\.c' | rule memory_through_mem
unsafe='system|popen|gets|strcpy|strcat|strncpy|strncat|v?sprintf|strtok|atoi|atol|atoll|atof'
calls "$unsafe|s?rand|random|drand48|setlocale|signal|setjmp|longjmp" |
    rule no_unsafe_calls
# A result that depends on libm is another one on another machine (docs/numerics.md): fmath.h has
# what is wanted of it. Arithmetic of templates is that of Python, which takes libm's, too.
libm='exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|asin|acos|atan|atan2|sinh'
libm="$libm|cosh|tanh|asinh|acosh|atanh|cbrt|hypot|erf|erfc|tgamma|lgamma"
calls "(__builtin_)?($libm)[fl]?" 'src/text/jinja/[a-z_]*\.c' | rule no_libm_in_results

# The first failure wins, so an error that begins as anything would win over all: one that a
# function declares has a value, or is cleared within six lines.
awk '/^\{/ {inside = 1} /^\}/ {inside = 0}
     FNR == 1 && at {print at; at = ""}
     inside && /^ +struct pith_error [a-z_]+;/ {at = FILENAME ":" FNR ": an error that has no value"
                                                 from = FNR}
     at && /error_clear\(/ {at = ""}
     at && FNR > from + 6 {print at; at = ""}' src/**/*.c | rule errors_begin_as_none

# Const is cast away in two functions (unconst.h), which compilers do not see through: who calls
# them has a library's interface for a reason, or memory that it made and others look at. All else
# is found by -Wcast-qual. (json_lent is the server's, for jansson; pointer_of takes numbers.)
code src/**/*.{c,h,inl} {cli,server,tools}/**/*.{c,h} | grep -v '/unconst\.h:' |
    grep -E '\*( *const)?\) *\(u?intptr_t\) *[^0-9]' |
    grep -v '^cli/common\.c:.*(intptr_t)fd' | rule const_is_kept
code src/**/*.{c,h,inl} {cli,server,tools}/**/*.{c,h} | grep -E '\bunconst\(' |
    grep -vE -e '^src/(base/machine/file|backend/cpu/cpu)\.c:' -e '/unconst\.h:' \
        -e '^server/(http/http\.c|schedule/branch\.c|json\.h):' | rule few_go_around_const

{ git ls-files 2>/dev/null || find . -type f -not -path './build*' | sed 's|^\./||'; } | sort -u |
    grep -vE '^(scripts/(check_forbidden|rules)\.sh|tests/data/|fuzz/corpus/)' >"$B/.tracked"
tr '\n' '\0' <"$B/.tracked" | xargs -0 -r grep -nIE '\b(TODO|FIXME|XXX|HACK)\b' 2>/dev/null |
    cut -c 1-120 | rule no_unfinished_marks
tr '\n' '\0' <"$B/.tracked" | xargs -0 -r grep -nIE '(^|[^A-Za-z0-9_.])/(work|root|home)/[a-z]' \
    2>/dev/null | cut -c 1-120 | rule no_machine_paths

wc -l "${ours[@]}" /dev/null |
    awk '$2 != "total" && $1 > 1500 {print $2 " has " $1 " lines, over 1500"}' |
    rule files_under_1500_lines
wc -l include/**/*.h | awk '$2 != "total" && $1 > 800 {print $2 " has " $1 " lines, over 800"}' |
    rule public_headers_under_800_lines
# A function's body is what stands between "{" and "}" in the first column.
awk '/^\{/ {from = FNR}
     /^\}/ {
        n = FNR - from - 1
        if (from && n > 80) print FILENAME ":" from ": " n " lines, over 80"
        from = 0
     }
     FNR == 1 {from = 0}' "${ours[@]}" /dev/null | rule functions_under_80_lines

rules_end
