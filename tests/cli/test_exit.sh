#!/usr/bin/env bash
# test_exit.sh -- the program when what it reads goes wrong underneath it: text that is not UTF-8,
# files that cannot be read to the end, a model that is cut short while it runs, memory and output
# that give out. Codes: 0 well, 2 the input, 3 the system; one line that says why.
. "$(dirname "$0")"/../report.sh
needs exit "$pith"
asan=$(grep -c -m 1 -e __asan_init -e __tsan_init "$pith")

# said NAME STATUS WANTED PATTERN: the program ended so, and stderr is one line with PATTERN
# (nothing when it is "").
said()
{
    if [ "$2" -ne "$3" ]; then
        fail "$1" "status $2, wanted $3: $(head -c 200 "$err" | tr '\n' ' ')"
    elif [ -z "$4" ] && [ -s "$err" ]; then
        fail "$1" "said \"$(head -c 200 "$err")\""
    elif [ -n "$4" ] && { [ "$(wc -l <"$err")" -ne 1 ] || ! grep -qE -e "$4" "$err"; }; then
        fail "$1" "wanted one line with \"$4\", found \"$(head -c 300 "$err")\""
    else
        ok "$1"
    fi
}
# gives NAME STATUS PATTERN ARGUMENT...: as report.sh has it, but this one line alone is said.
gives()
{
    local name=$1 status=$2 pattern=$3
    shift 3
    timeout 60 "$pith" "$@" >"$out" 2>"$err"
    said "$name" $? "$status" "$pattern"
}

m=$dir/m.gguf
"$pith" synth "$m" --vocab 300 || fail synth "no model"

# ---------------------------------------------------------------- text that is not UTF-8

bad=$'a\xff\xfe\xc3(\xe2\x82'
gives prompt_not_utf8 0 '' run "$m" -p "$bad" -n 3
printf '%s' "$bad" >"$dir/bad"
gives prompt_file_not_utf8 0 '' run "$m" -f "$dir/bad" -n 3
printf 'a\0b' >"$dir/nul"
gives prompt_with_nul 0 '' run "$m" -f "$dir/nul" -n 3 --temp 0 --ignore-eog
gives tokenize_not_utf8 0 '' tokenize "$m" "$bad"
printf '{"text": "%s"}\n{"text": "a"}\n' "$bad" |
    timeout 60 "$pith" tokenize "$m" --jsonl >"$out" 2>"$err"
said jsonl_not_utf8 $? 0 ''
if [ "$(grep -c '"error"' "$out") $(grep -c '"ids"' "$out")" = "1 1" ]; then
    ok jsonl_goes_on
else
    fail jsonl_goes_on "$(head -c 200 "$out")"
fi
gives file_name_not_utf8 2 'absent.*No such file' run "$dir/absent"$'\xff' -p x

# ---------------------------------------------------------------- reading that fails

if [ -r /proc/self/mem ]; then # opens, and fails at its first byte
    gives prompt_read_error 3 '/proc/self/mem.*Input/output error' run "$m" -f /proc/self/mem -n 3
    gives ids_read_error 3 '/proc/self/mem.*Input/output error' logits "$m" --tokens \
        @/proc/self/mem --out "$dir/l"
else
    skip read_error "no /proc/self/mem"
fi
timeout 60 "$pith" run "$m" -n 3 <"$dir" >"$out" 2>"$err"
said stdin_is_a_folder $? 2 'directory'
gives logits_leave_nothing 2 'context|n_ctx' logits "$m" --tokens "$(seq -s, 1 290)" --out \
    "$dir/l" -c 8
if ls "$dir"/l* >/dev/null 2>&1; then fail logits_nothing_left "$(ls "$dir")"; else
    ok logits_nothing_left; fi

# A model that is cut short while it runs: its embedding is read from the file, row by row.
if [ "$asan" -eq 0 ]; then
    cp "$m" "$dir/cut.gguf"
    rm -f "$out" # what it had is no text of this run
    timeout 60 "$pith" run "$dir/cut.gguf" -p a -n -2 --ignore-eog -c 1000000 --override-kv \
        llama.context_length=int:1000000 >"$out" 2>"$err" &
    pid=$!
    comes test -s "$out"
    truncate -s 4096 "$dir/cut.gguf"
    wait $pid
    said model_cut_short $? 3 'file cannot be read any more'
else
    skip model_cut_short "a sanitizer sees to SIGBUS itself"
fi

# ---------------------------------------------------------------- memory that gives out

if [ "$asan" -eq 0 ]; then
    "$pith" synth "$dir/large.gguf" --layers 4 --embd 256 --heads 8 --ff 1024 --vocab 2000 --ctx \
        4096
    start=10000 # what the program and its libraries take before it does anything
    until (ulimit -v $start && "$pith" --version >"$out" 2>"$err"); do
        start=$((start + 2000))
    done
    for more in 12000 2000; do
        kib=$((start + more))
        (ulimit -v $kib && timeout 60 "$pith" run "$dir/large.gguf" -p x -n 3 >"$out" 2>"$err")
        rc=$?
        # Weights that do not fit are used from the file first, which is said.
        grep -v 'they are used as they lie in the file' "$err" >"$dir/other"
        mv "$dir/other" "$err"
        said "address_space_and_$more" $rc 3 \
            'memory|address space|allocate|cannot start thread|limited by RLIMIT_AS'
    done
    (ulimit -v 200000 && timeout 60 "$pith" run "$dir/large.gguf" -p x -n 3 -c 4000000 >"$out" \
        2>"$err")
    said large_context $? 3 'smaller context|memory'
else
    skip memory "a sanitizer needs the address space"
fi
finish
