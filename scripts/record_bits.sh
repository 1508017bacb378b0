#!/usr/bin/env bash
# record_bits.sh -- which bits does a program compute? Two records show whether a change of the code
# changed them.
#
#   record_bits.sh [--quick] [PITH] OUT    writes OUT; PITH is the program, default build/pith
#   record_bits.sh --compare A B           what the record A has and B has otherwise; status 1 when
#                                          there is any
#
# A record has one line a case, sorted: NAME SHA256. The hash is of the logits (raw float32) of
# every token, NAME is model/level/cache type/chunk. A case has "refused" for its hash where the
# program refuses it (a cache type that the model's heads do not fit into); "skip MODEL: why" stands
# for a model that the program cannot open or run. All models of $PITH_SHARED/golden (folders arch
# and quant) are run, stories260K, and Gemma 3 270M when it is here, in
#
#   levels       those of PITH_CPU that the processor has, ref to avx512bf16 or amx (or bf16)
#   cache types  f32 f16 bf16 q8_0 q4_0
#   chunks       1, 7 and all tokens in a step; a model that has to take all in one is recorded so
#   also         two logical devices, weights packed and mapped, and what is pooled of embeddings
#
# --quick takes a part of these cases, with the same names. A part is compared with the whole: cases
# that the part of B leaves out are no difference, models that it cannot open any more are one.
# Cases that B has alone are counted as new.
set -u

fail() { echo "record_bits: $*" >&2; exit 2; }

if [ "${1:-}" = --compare ]; then
    [ $# -eq 3 ] && [ -r "$2" ] && [ -r "$3" ] ||
        fail "--compare wants two records that can be read"
    exec awk '
        FNR == 1 {file++}
        /^#/ {quick = $2 == "quick"; next}
        file == 1 && $1 != "skip" {hash[$1] = $2}
        file == 1 {next}
        $1 == "skip" {m = $2; sub(":$", "", m); left[m] = $0; next}
        !($1 in hash) {new++; next}
        {seen[$1] = 1}
        hash[$1] == $2 {same++; next}
        {print "other bits: " $1; bad++}
        END {
            for (c in hash) {
                m = c; sub("/.*", "", m)
                if (m in left) {gone[m]++; continue}
                if (!(c in seen) && !quick) {print "not there: " c; bad++}
            }
            for (m in gone) {print "cannot be run any more: " left[m]; bad++}
            printf "%d the same, %d other, %d new\n", same, bad, new
            exit bad > 0 || same == 0
        }' "$2" "$3"
fi

quick=0
if [ "${1:-}" = --quick ]; then
    quick=1
    shift
fi
[ $# -eq 2 ] && { pith=$1; shift; } || pith=$(dirname "$0")/../build/pith
[ $# -eq 1 ] || fail "usage: record_bits.sh [--quick] [PITH] OUT | --compare A B"
out=$1
[ -x "$pith" ] || fail "there is no program $pith"
shared=${PITH_SHARED:-$(dirname "$0")/../../shared}
export pith PITH_CONFIG=/dev/null PITH_THREADS=2
export dir
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT

# The levels that this processor has: a level above its best is named as the best by the program.
levels=()
for l in ref base avx2 avxvnni avx512 avx512vnni avx512bf16 amx neon dotprod i8mm bf16; do
    [ "$(PITH_CPU=$l "$pith" version 2>/dev/null | awk '{print $NF}')" = $l ] && levels+=("$l")
done
[ ${#levels[@]} -gt 0 ] || fail "$pith names no level of the processor"
best=${levels[-1]}

# case_line "NAME|MODEL|TOKENS|LEVEL|DEVICES|FLAGS": runs one and prints its line.
case_line()
{
    local name model ids level devices flags hash f=$dir/$BASHPID
    IFS='|' read -r name model ids level devices flags <<<"$1"
    # shellcheck disable=SC2086 -- flags are words
    if PITH_CPU=$level PITH_CPU_DEVICES=$devices "$pith" logits "$model" --tokens "@$ids" -o "$f" \
        --no-cache-dir $flags \
        >/dev/null 2>&1; then
        hash=$(sha256sum "$f")
        echo "$name ${hash%% *}"
        rm -f "$f"
    else
        echo "$name refused"
    fi
}
export -f case_line

# cases NAME MODEL TOKENS [CONTEXT]: the lines that case_line takes.
cases()
{
    local l c k ctx=${4:-256}
    local all="-c $ctx --chunk $ctx"
    emit() { echo "$1/$4/$6|$2|$3|$4|${5:-1}|$7"; }
    local some=("${levels[@]}") types=(f32 f16 bf16 q8_0 q4_0) chunks=(1 7 all)
    if [ $quick = 1 ]; then
        some=(ref "$best") types=(f32 q8_0) chunks=(7)
    fi
    for l in "${some[@]}"; do
        for c in "${types[@]}"; do
            for k in "${chunks[@]}"; do
                [ "$k" = all ] && flags=$all || flags="-c $ctx --chunk $k"
                emit "$1" "$2" "$3" "$l" 1 "$c/$k" "$flags --cache-type-k $c --cache-type-v $c"
            done
        done
    done
    [[ $quick = 0 || $2 != */quant/* ]] || return
    emit "$1" "$2" "$3" "$best" 2 f16/7/devices "-c $ctx --chunk 7"
    for c in mapped packed; do
        emit "$1" "$2" "$3" "$best" 1 "f16/7/$c" "-c $ctx --chunk 7 --weights $c"
    done
    for c in mean cls last none; do
        emit "$1" "$2" "$3" "$best" 1 "f16/all/$c" "-c $ctx --pooling $c"
    done
}

# The models with their tokens: those of NAME.json, else the numbers from 3 on.
all_cases()
{
    local m name big ctx
    first() { "$pith" logits "$m" --tokens "@$dir/$name.ids" -o "$dir/first" --no-cache-dir \
        -c $ctx >/dev/null 2>"$dir/why"; }
    for m in "$shared"/golden/{arch,quant}/*.gguf "$shared"/vectors/models/stories260K.gguf; do
        [ -r "$m" ] || continue
        name=$(basename "$m" .gguf)
        sed -n 's/.*"tokens": *\[\([0-9, ]*\)\].*/\1/p' "${m%.gguf}.json" 2>/dev/null \
            >"$dir/$name.ids"
        [ -s "$dir/$name.ids" ] || seq -s , 3 50 >"$dir/$name.ids"
        ctx=256
        if ! first; then # as many as it has learned
            ctx=$(sed -n 's/.*has learned \([0-9]*\) positions.*/\1/p' "$dir/why")
            ctx=${ctx:-256}
        fi
        if ! first; then
            echo "skip $name: $(head -n 1 "$dir/why" |
                sed 's|/[^ ]*/||; s|; known are .*||')" >>"$dir/skipped"
            continue
        fi
        cases "$name" "$m" "$dir/$name.ids" $ctx
    done
    big=$("$(dirname "$0")"/model.sh --if-present) || {
        echo "skip gemma-3-270m: the file is not here (scripts/model.sh)" >>"$dir/skipped"
        return
    }
    seq -s , 1000 37 1800 >"$dir/big.ids"
    # The slow levels with one cache type, --quick one case.
    cases gemma-3-270m "$big" "$dir/big.ids" |
        if [ $quick = 1 ]; then grep "/$best/f16/7/packed"; else
        grep -vE '/(ref|base)/([^f].*|f32)/(1|7|all)[|]'; fi
}

: >"$dir/skipped"
all_cases >"$dir/cases"
xargs -P "$(nproc)" -d '\n' -n 16 bash -c 'for c; do case_line "$c"; done' _ <"$dir/cases" \
    >"$dir/lines"
{
    [ $quick = 1 ] && echo "# quick" || echo "# whole"
    sort "$dir/lines" "$dir/skipped"
} >"$out" || fail "cannot write $out"
echo "record_bits: $(wc -l <"$dir/lines") cases, $(wc -l <"$dir/skipped") models skipped" >&2
