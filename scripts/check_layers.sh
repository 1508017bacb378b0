#!/usr/bin/env bash
# check_layers.sh -- who may include whom.
#
# base <- tensor <- {format, graph} <- nn <- arch <- run <- api <- programs; text <- base, tensor,
# format; backend/* <- base, tensor, graph. A room includes itself, the rooms below it and pith.h.
# Programs include pith.h and files of their own folder. Files compiled for an instruction set
# include the kernel interface and freestanding headers alone, so that nothing compiled above the
# baseline can be called where the CPU lacks it.
. "$(dirname "$0")"/rules.sh

allowed='
base    base
tensor  base tensor
format  base tensor format
graph   base tensor graph
nn      base tensor format graph nn
arch    base tensor format graph nn arch
backend base tensor graph backend
text    base tensor format text
run     base tensor format graph nn arch backend text run
api     base tensor format graph nn arch backend text run api
'
sources=(src/**/*.{c,h,inl,def} include/**/*.h {cli,server,tools}/**/*.{c,h})

# Every include as "file:line file target", target resolved to a path of the tree, or <header>.
includes=$(grep -nE '^[ \t]*#[ \t]*include' "${sources[@]}" /dev/null |
    sed -nE 's/^([^:]+):([0-9]+):[^"<]*(["<])([^">]+).*/\1 \2 \3 \4/p' |
    while read -r file line kind name; do
        target="<$name>"
        if [ "$kind" = '"' ]; then
            target=missing:$name
            for dir in src include "${file%/*}" .; do
                [ -e "$dir/$name" ] && target=$dir/$name && break
            done
            target=${target#./}
        fi
        echo "$file:$line $file $target"
    done)

# The picture: which folders a folder sees, each without its src/. ARCHITECTURE.md has it as a
# table; "check_layers.sh --picture" prints the table that the includes make.
picture()
{
    awk '$3 ~ /^(src|cli|server)\// && $3 != "src/run/sample/samplers.def" {
        from = $2; to = $3
        sub(/\/[^\/]*$/, "", from); sub(/\/[^\/]*$/, "", to)
        sub(/^src\//, "", from); sub(/^src\//, "", to)
        if (from != to) print from, to
    }' <<<"$includes" | sort -u
}
table()
{
    picture | awk \
        '$1 != last { if (last != "") print "| `" last "` | " sees " |"; last = $1; sees = "" }
        { sees = sees (sees == "" ? "" : ", ") "`" $2 "`" }
        END { if (last != "") print "| `" last "` | " sees " |" }'
}
if [ "${1:-}" = --picture ]; then
    table
    exit
fi
awk '$3 ~ /^missing:/ {print $1 " includes " substr($3, 9) ", which is not there"}' <<<"$includes" |
    rule includes_exist

awk -v allowed="$allowed" '
    BEGIN {
        n = split(allowed, rows, "\n")
        for (i = 1; i <= n; i++) {
            m = split(rows[i], w, " ")
            for (j = 2; j <= m; j++) ok[w[1], w[j]] = 1
            known[w[1]] = 1
        }
    }
    $2 ~ /^src\// && $3 ~ /^src\// {
        split($2, a, "/"); split($3, b, "/")
        if (!(a[2] in known)) print $1 " is in no room"
        else if (!((a[2], b[2]) in ok)) print $1 " includes " $3 ": " a[2] " may not see " b[2]
        else if (a[2] == "backend" && b[2] == "backend" && a[3] != b[3] &&
                 a[3] ~ /^[a-z]+$/ && b[3] ~ /^[a-z]+$/ &&
                 (b[3] != "gpu" || a[3] == "cpu" || a[3] == "far"))
            print $1 " includes " $3 ": backends do not see each other"
    }
    $2 ~ /^include\// && $3 !~ /^</ && $3 !~ /^include\/pith\// {
        print $1 " includes " $3 ": the public header stands alone"
    }' <<<"$includes" | rule layers

# Two things besides: what the program of the server is called with, and a table without code.
awk '$2 ~ /^(cli|server|tools)\// && $3 !~ /^</ && $3 != "include/pith.h" &&
     $3 != "src/run/sample/samplers.def" {
    split($2, a, "/"); split($3, b, "/")
    if (a[1] != b[1] && !(a[1] == "cli" && $3 == "server/server.h"))
        print $1 " includes " $3 ": programs see pith.h alone"
}' <<<"$includes" | rule programs_see_public_header

awk '$2 ~ /^src\/backend\/cpu\/(x86|arm)\// || $2 ~ /^src\/backend\/cpu\/.*\.inl$/ {
    if ($3 ~ /^src\/backend\/cpu\/(kern|simd)[a-z0-9_]*\.(h|inl)$/ || $3 ~ /\.inl$/) next
    if ($3 ~ /^src\/backend\/cpu\/(x86|arm)\//) next
    if ($3 ~ /^src\/tensor\/.*\.(h|def)$/) next
    if ($3 ~ /^<(stddef|stdint|stdbool|float|limits|string|immintrin|arm_neon|arm_acle)\.h>$/) next
    print $1 " includes " $3 ": not freestanding"
}' <<<"$includes" | rule kernels_are_freestanding

# What a file has of a weight (tensor/source.h) is for who fills placements: neither backends
# include it nor headers that they see.
awk '$3 == "src/tensor/source.h" &&
     ($2 ~ /^src\/backend\// || $2 ~ /^src\/(base|tensor|graph)\/.*\.(h|inl|def)$/) {
    print $1 " includes " $3 ": kernels see placements, never the file"
}' <<<"$includes" >"$B/.files-seen"
code src/backend/**/*.{c,h,inl} | grep -E 'struct bringing|\bw2?->brought\b' >>"$B/.files-seen"
rule backends_never_see_files <"$B/.files-seen"

sed -n '/^| folder | sees |$/,/^$/p' ARCHITECTURE.md 2>/dev/null | grep '^| `' | diff - <(table) |
    sed -nE -e 's/^< (.*)/is in ARCHITECTURE.md and not so: \1/p' \
        -e 's/^> (.*)/is not in ARCHITECTURE.md: \1/p' |
    rule picture_of_rooms
# Folders beside each other see each other one way. A folder and what is in it are one thing.
picture | awk 'index($1 "/", $2 "/") != 1 && index($2 "/", $1 "/") != 1' |
    tsort 2>&1 >/dev/null | sed 's/^tsort: //' | rule no_loop_of_folders

awk '$3 !~ /^</ && $3 !~ /^missing:/ {print $2, $3}' <<<"$includes" | tsort 2>&1 >/dev/null |
    sed 's/^tsort: //' | rule no_include_cycle

# Each by itself, if any header has changed since they all did. That a library's header is not on
# this machine is no fault of the one that includes it.
headers=(src/**/*.h include/**/*.h {cli,server,tools}/**/*.h)
stamp=$B/.headers-alone
if [ ! -e "$stamp" ] || find src include cli server -name '*.h' -newer "$stamp" -print \
    -o -name '*.def' -newer "$stamp" -print -o -type d -newer "$stamp" -print | grep -q .; then
    touch "$stamp.now"
    printf '%s\n' "${headers[@]}" |
        xargs -r -n 16 -P "$(nproc)" ${CC:-gcc} -std=gnu11 -D_GNU_SOURCE -Iinclude -Isrc -I. -w \
            -fsyntax-only -x c 2>&1 | grep error |
        grep -vE 'fatal error: .*(No such file|file not found)' | sort -u >"$stamp.found"
    [ -s "$stamp.found" ] || mv "$stamp.now" "$stamp"
    rule headers_compile_alone <"$stamp.found"
else
    rule headers_compile_alone </dev/null
fi

# Asking whether there is one (arch == NULL) is no comparison.
code src/**/*.{c,h,inl} {cli,server,tools}/**/*.{c,h} | grep -v '^src/arch/' |
    sed -E 's/\barch *(==|!=) *NULL\b//g' |
    grep -E -e '\barch(->name|\.name|_id|_name)? *(==|!=)' -e '\bcase ARCH_' \
        -e '\b(strn?cmp|strn?casecmp|str_eq[a-z_]*|memcmp)\([^;]*\barch(->name|\.name|_name)?\b' \
        -e 'switch *\([^)]*\barch\b' |
    rule no_arch_switch_outside_arch
# A file's own name for it is read by src/arch, and is shown, written and compared with a model's by
# those below. One table of rows tells families apart by it (special.c, strips): their names are
# those of the list.
grep -n '"general\.architecture"' src/**/*.{c,h,inl,def} /dev/null |
    grep -vE -e '^src/arch/arch\.c:' -e '^src/run/model/(model|synth|adapter)\.c:' \
        -e '^src/api/pith_file\.c:' -e '^src/text/vocab/special\.c:[0-9]+: +\{' \
        >"$B/.architectures"
sed -nE 's/^ +\{"general\.architecture", "([^"]+)".*/\1/p' src/text/vocab/special.c 2>/dev/null |
    while read -r name; do
        grep -qE "[( ]\"$name\"" src/arch/**/*.c || echo "special.c: no architecture is $name"
    done >>"$B/.architectures"
rule architectures_are_told_apart_at_home <"$B/.architectures"

# Keys of architectures are rows of their tables (arch/hparams.h), and hparams.c alone looks for
# them: so the tables tell all that a file may say. Others look for keys that all files have, by
# name. The files that are left out below look for what they are handed: such a key of a table of
# their own, or one that a caller of the library names.
grep -nE '\bgguf_find *\(|"%s\..*\barch(->|\.)name\b' src/**/*.{c,h,inl} /dev/null |
    grep -v -e '^src/arch/hparams\.c:' -e '^src/format/gguf\.[ch]:' |
    sed -E 's/\bgguf_find *\([^,()]+, *"(general|tokenizer|adapter)\.[^"]*"\)//g' |
    grep -e '"%s\.' -e 'gguf_find *(' |
    awk '!/gguf_find *\([^",]+, *[a-z]/ || $0 !~ "^src/(text/vocab/(special|vocab|wpm)|" \
        "run/model/(model|adapter)|run/sample/sample_defaults|api/pith)\\.c:"' |
    rule keys_are_read_by_tables

# The names of ops in ops.def.
ops=$(sed -nE 's/^X\((\w+),.*/\1/p' src/graph/ops.def | paste -sd '|')
code src/{base,tensor,format,graph,nn,arch,text,run,api}/**/*.{c,h} | grep -v '^src/graph/ops/' |
    grep -E "\bOP_($ops)\b" | rule ops_are_named_at_home

# What a builder of ops takes beyond five arguments is a struct.
for f in src/graph/ops/*.h; do
    code "$f" | sed 's/^[^:]*:[0-9]*://' | tr '\n' ' ' |
        grep -oE '\bnode graph_\w+\([^)]*\)' | grep -E '(,[^,]*){5}' | sed "s|^|$f: |"
done | rule builders_take_five_arguments

# A kind of state is known by its facts (graph/state.def), but to ops that read it and to backends.
kinds=$(sed -nE 's/^STATE_ROWS\((\w+),.*/STATE_\1/p; s/^STATE_RANGE\((\w+),.*/RANGE_\1/p' \
    src/graph/state.def | paste -sd '|')
code src/{graph,run,api}/**/*.{c,h} | grep -v '^src/graph/ops/' |
    grep -E "\b(${kinds:-STATE_OF_NONE})\b" | rule states_are_known_by_their_facts

# Memory of devices: only backends know what a handle means. Where the host can look is asked by
# who has another way where it cannot.
code src/**/*.{c,h,inl} | grep -v -e '^src/backend/' -e '^src/graph/memory\.' |
    grep -E -e '(->|\.)handle\b' | rule buffers_are_opaque
code src/**/*.{c,h,inl} | grep -v -e '^src/backend/' -e '^src/graph/\(memory\|plan_run\)\.' \
    -e '^src/run/cache/cache\(_nodes\)\?\.c' \
    -e '^src/run/model/\(load\|pack_later\|packed_file\|threads\)\.c' |
    grep -E '\bbuffer_map *\(' | rule few_look_into_buffers

# Operands are read, and an op's own value is written (graph/backend.h): an op that writes into what
# others read, too, would be seen by them or not, as it happens.
code src/**/*.{c,h,inl} |
    grep -E '\bvalue_(ptr|row)\([^(]*[.>]src\[' | rule operands_are_only_read

# What runs a node is the backend's business: the others see what it is called, whether it is slow
# and the scratch it takes.
code src/**/*.{c,h,inl} | grep -v -e '^src/backend/' -e '^src/graph/op\.c' |
    grep -E 'impl(\.|->)(fn|units|ctx)\b' | rule kernels_belong_to_backends

# Instruction sets belong to kernel folders: nothing else is compiled for one, whole or in part.
# (cpu.c asks which there are; fmath.c takes fma as an instruction where there is one.)
code src/**/*.{c,h,inl} {cli,server,tools}/**/*.{c,h} |
    grep -v -e '^src/backend/' -e '^src/base/\(machine/cpu\|fmath\)\.c' |
    grep -E -e 'target *\(' -e '\bvector_size\b' \
        -e '<([a-z0-9]*mmintrin|arm_[a-z]+|x86intrin)\.h>' |
    rule instruction_sets_in_kernel_folders

rules_end
