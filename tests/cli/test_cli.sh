#!/usr/bin/env bash
# test_cli.sh -- the program from outside: flags, help, messages, exit codes, files, pipes and
# signals. Models are made by `pith synth`; what needs recorded data is skipped by name without it.
. "$(dirname "$0")"/../report.sh
needs cli "$pith"

# all that there are, and these among them
commands=$("$pith" help | sed -n 's/^  \([a-z]*\) .*/\1/p' | grep -vE '^(version|help|man|pith)$')
for c in run bench perplexity inspect embed rerank logits tokenize sample template grammar synth \
    list rm devices; do
    gives "help_has_$c" 0 "^  $c +[a-z]" help
done

# ---------------------------------------------------------------- help and version

gives help 0 'Usage: pith COMMAND' --help </dev/null
for c in $commands; do
    gives "help_$c" 0 '^Example:' "$c" --help
    same "help_${c}_ends_its_line" "$(tail -c 1 "$out" | wc -l)" 1
    # an example of where flags come from is a flag of this command
    flag=$(tr '\n' ' ' <"$out" | sed -n 's/.*in the environment (\(--[a-z-]*\): .*/\1/p')
    [ -z "$flag" ] ||
        same "help_${c}_own_flag" "$(grep -cE -- "^  .{4,6} $flag( |\$)" "$out")" 1
    same "help_${c}_two_ways" "$(cat "$out")" "$("$pith" help "$c")"
    same "help_${c}_is_narrow" "$(awk 'length > 92' "$out")" ""
    gives "help_${c}_anywhere" 0 "^Usage: pith $c" "$c" --no-such-flag -h
done
gives version 0 '^pith [0-9]+\.[0-9]+\.[0-9]+ \(.*\) [a-z0-9]+$' version
gives version_flag 0 '^pith [0-9]' --version
gives help_tells_ranges 0 '\(1 to 1024, or auto; default: ' run --help
gives help_tells_sizes 0 '\(at least 1; default: 32G\)' run --help
gives man_tells_as_much 0 \
    'threads \(1 to 1024, or auto; default: |folder \(1 to 1024, or auto; default: ' man
"$pith" man >"$out"
same man_requests_begin_lines "$(grep -c '.\.\(RE\|fi\|TP\|SS\|SH\)$' "$out")" 0
case $commands in *serve*) gives man_of_several_models 0 '^.SS pith serve \[MODEL\.\.\.\]' man ;;
esac
gives no_command 1 'Usage'

gives devices 0 '^CPU +cpu ' devices
gives devices_json 0 '"name": "CPU"' devices --json
PITH_FAR_DEVICES=1 gives devices_far 0 '^FAR0 +gpu ' devices
gives gpu_layers_words 1 'or auto|all, from 0' run m -ngl most

# ---------------------------------------------------------------- wrong use: status 1, what was
# found, what was wanted

gives unknown_command 1 'unknown command "rnu"; did you mean run\?' rnu
gives command_elsewhere 1 'unknown command "ls"; wanted: pith list' ls
gives command_elsewhere_words 1 'unknown command "quantize"; files stay' quantize m
gives command_of_llama 1 'unknown command "llama-cli"; wanted: pith run MODEL' llama-cli -m x
gives command_of_llama_near 1 'unknown command "llama-bench"; did you mean bench\?' llama-bench
gives command_model 1 'unknown command "x.gguf"; wanted: pith run MODEL' x.gguf
gives unknown_command_far 1 "unknown command \"xyzzy\"; 'pith --help'" xyzzy
for c in version help man; do
    same "help_$c" "$("$pith" help "$c" 2>&1)" "$("$pith" help)"
    same "help_of_$c" "$("$pith" "$c" --help 2>&1)" "$("$pith" help)"
done
gives model_by_hf 1 'unknown flag -hf; hf:OWNER/REPO stands without a flag: pith run hf:' \
    run -hf a/b
gives unknown_help 1 'did you mean bench' help ben
gives unknown_flag 1 'unknown flag --tempp; did you mean --temp\?' run m --tempp 1
gives flag_elsewhere 1 'unknown flag --ssl-key-file; did you mean --tls-key\?' serve m \
    --ssl-key-file k
gives flag_elsewhere_timeout 1 'unknown flag -to; --read-timeout says how' serve m -to 4
gives flag_short 1 '[-][-]parallel is "0"; wanted' serve m -np 0
gives flag_short_cache 1 '[-][-]cache-type-k is "x"; wanted' run m -ctk x
gives flag_elsewhere_lines 1 'unknown flag -mli; a paste, and lines between' run m -mli
gives flag_elsewhere_grammar 1 "--grammar-file; --default 'grammar=GBNF'" serve m --grammar-file g
gives flag_elsewhere_schema 1 "unknown flag -jf; --default 'json_schema=" serve m -jf s
gives flag_elsewhere_ping 1 'interval; --default sse_ping_interval=SECONDS' serve m \
    --sse-ping-interval 3
gives flag_elsewhere_words 1 'unknown flag --jinja; chat templates are always' run m --jinja
gives flag_elsewhere_other_command 1 'unknown flag --temp; --default temperature=T' serve m --temp 1
gives flag_elsewhere_twice 1 'chat-template-kwargs; did you mean --template-kwargs\?' \
    run m --chat-template-kwargs '{}'
gives flag_elsewhere_serve 1 "unknown flag --chat-template-kwargs; --default 'chat_template" \
    serve m --chat-template-kwargs '{}'
gives flag_elsewhere_sampler 1 'unknown flag --dry-base; --default dry_base=X says it' \
    serve m --dry-base 2
gives flag_one_dash 1 'unknown flag -temp; did you mean --temp\?' run m -temp 1
gives flag_short_no_guess 1 "unknown flag -xyz; 'pith bench --help'" bench m -xyz
gives flag_no_wild_guess 1 "unknown flag --dxlxy; 'pith bench --help'" bench m --dxlxy
gives flag_of_bench 1 'unknown flag -pg; --total with -p and -n' bench m -pg 1,2
gives flag_elsewhere_pattern 1 'unknown flag --spec-draft-n-max; drafts of' run m --spec-draft-n-max
# all flags of another program's command line at once, and no value among them
said=$("$pith" serve -m x.gguf -ngl 99 --jinja --logit-bias -5 -np -1 -fa on -c 4096 --port=9 -cb \
    -- --never 2>&1)
same flags_elsewhere_all "$(sed 's/.*unknown flag \([^;]*\);.*/\1/' <<<"$said" | tr '\n' ' ')" \
    '-m --jinja --logit-bias -fa -cb '
same flags_elsewhere_status 1 "$("$pith" serve -m x --jinja >/dev/null 2>&1; echo $?)"
# each row is said somewhere: what it names is there
lost=
for flag in $(sed -n 's/^ELSEWHERE("\([^"]*\)".*/\1/p' cli/args/elsewhere.def | tr '*' x | sort -u)
do
    for c in serve run $commands; do # most are of the first two
        said=$("$pith" "$c" "$flag" 2>&1)
        [[ $said == *'unknown flag'* && $said != *"; 'pith $c --help'"* ]] && continue 2
    done
    lost="$lost $flag"
done
same flags_elsewhere_all_say "$lost" ""
for c in bench perplexity logits embed; do
    gives "adapter_of_$c" 1 "unknown flag --lora; adapters work with 'pith run' and 'pith serve'" \
        $c m --lora x
done
gives unknown_flag_prefix 1 'did you mean --temp\?' run m --temperature=1
gives unknown_flag_far 1 "unknown flag --zzz; 'pith run --help'" run m --zzz
gives unknown_short_flag 1 'unknown flag -q' run m -q
gives missing_model 1 'MODEL is missing' run
gives missing_flag 1 '\-\-out is missing' logits m --tokens 1
gives missing_value 1 '\-n has no value; wanted a whole number' run m -n
gives extra_argument 1 'found "c" where nothing more was wanted; a text of several words' run a b c
gives extra_argument_no_text 1 'found "b" where nothing more was wanted$' inspect a b
gives prompt_twice 1 'found "b" and --prompt; wanted one' run a b -p c
gives prompt_and_file 2 'c: cannot open' run a b -f c
gives model_by_flag 1 'unknown flag -m; MODEL stands without a flag: pith run MODEL' run -m x
gives model_by_long_flag 1 'unknown flag --model; MODEL stands without a flag: pith bench MODEL' \
    bench --model=x
gives flag_as_command 1 'unknown command "-m"; wanted: pith run MODEL' -m x
gives flag_is_no_command 1 "unknown command \"-l\"; 'pith --help'" -l
gives model_as_command 1 'unknown command "x.gguf"; wanted: pith run MODEL' x.gguf -p hi
gives reference_as_command 1 'wanted: pith run MODEL' ollama:x -p hi
gives file_as_command 1 'wanted: pith run MODEL' "$0"
gives chat_as_command 1 'unknown command "chat"; wanted: pith run MODEL' chat x
gives model_name_with_dot 2 \
    "llama3.2: no file and no model of this name; 'pith list' .*ollama:NAME" run llama3.2 -p hi
gives model_name_with_tag 2 "no model of this name; 'pith list' .*ollama:NAME" run llama3.2:1b -p hi
# Before the model is looked for.
gives early_grammar 2 'nope.gbnf: cannot open: No such file' run "$dir/none.gguf" -p x --grammar \
    "$dir/nope.gbnf"
gives early_grammars 1 'found several of --grammar, --schema and --json' run "$dir/none.gguf" -p x \
    --json --schema s
gives early_trigger 1 'found --trigger alone' run "$dir/none.gguf" -p x --trigger s
gives early_samplers 2 'unknown sampler "foo"' run "$dir/none.gguf" -p x --samplers foo
gives early_session 2 '^pith: --session .*/absent/s: its folder cannot be written: No such file' \
    run "$dir/none.gguf" -p x --session "$dir/absent/s"
gives early_session_folder 2 'is a folder; wanted a file' run "$dir/none.gguf" -p x --session "$dir"
gives early_all_well 2 'none.gguf: cannot open' run "$dir/none.gguf" -p x --session "$dir/new" \
    --samplers top_k --json
gives model_name 2 "no model of this name; 'pith list' .*ollama:NAME" run llama -p hi
gives switch_with_value 1 '\-\-strict is "x"; wanted yes or no' run m --strict=x
gives bad_number 1 '\-\-temp is "hot"; wanted a number from -100 to' run m --temp hot
gives bad_number_tail 1 '\-\-temp is "1x"' run m --temp 1x
gives bad_number_nan 1 '\-\-temp is "nan"' run m --temp nan
gives bad_range 1 '\-\-top-p is "1.5"; wanted a number from 0 to 1' run m --top-p 1.5
gives bad_int 1 '\-\-top-k is "4.5"; wanted a whole number' run m --top-k 4.5
gives bad_int_huge 1 '\-\-seed is "99999999999999999999"' run m --seed 99999999999999999999
gives bad_size 1 '\-\-ctx is "4Q"; wanted .*K, M, G' run m -c 4Q
gives bad_size_huge 1 '\-\-ctx is "9999999999G"' run m -c 9999999999G
gives bad_choice 1 '\-\-cache-type-k is "q8"; wanted one of f32\|f16\|bf16\|q8_0' run m \
    --cache-type-k q8
# stdin is one thing, and a flag that would be left out is none
for flags in '' '-f -' '-p -'; do
    gives "grammar_and_prompt_of_stdin_${flags// /}" 1 \
        'found --grammar -, and stdin is where the prompt' run "$dir/none.gguf" $flags \
        --grammar - <<<'root ::= "a"'
done
gives grammar_and_text_of_stdin 1 'found --schema - and no TEXT' grammar --schema - <<<'{}'
gives tools_of_stdin 1 'found --tools -, and stdin is the answer' template m --parse --tools - \
    <<<x
gives prompt_of_stdin 1 'found --prompt -, and stdin is' template m --parse --prompt - <<<x
gives tokens_of_stdin_twice 1 'found @- for both' logits m --tokens @- --encoder-tokens @- -o - \
    </dev/null
gives bare_lines 1 'found --bare and --jsonl; there each line says "add_special"' tokenize m \
    --jsonl --bare
gives literal_lines 1 'found --literal and --jsonl' tokenize m --jsonl --literal
gives bench_of_two_forms 1 'found -o json and --csv; wanted one' bench m -o json --csv
gives bench_of_one_form_twice 2 'm: no file and no model' bench m -o csv --csv
gives bad_list 1 '\-\-prompt is "1,,2"; wanted whole numbers separated by commas' bench m -p 1,,2
gives bad_list_end 1 '\-\-depth is "1,"' bench m -d 1,
lists='; lists are for -p -n -d -np -t$'
gives no_list 1 "gpu-layers is \"0,99\"; wanted .*$lists" bench m -ngl 0,99
gives no_list_choice 1 "cache-type-k is \"f16,f32\"; wanted .*$lists" bench m -ctk f16,f32
gives no_list_size 1 "batch is \"64,512\"; wanted .*$lists" bench m -b 64,512
gives no_list_elsewhere 1 'ctx is "1,2"; wanted a whole number [^;]*$' run m -c 1,2
gives bad_threads 1 '\-\-threads is "two"; wanted a whole number or auto, from 1 to 1024' run m -p \
    x -t two
gives bad_threads_list 1 '\-\-threads is "1,auto,"; wanted whole numbers' bench m -t 1,auto,
gives bad_threads_prefill 1 '\-\-threads-prefill is "1025"' run m -p x --threads-prefill 1025
for list in 3-1 0, ,1 1-2-3 a 1024 -1 '0 1'; do
    gives "bad_affinity_$list" 1 \
        'affinity is ".*"; wanted processors like 0-3,8 or one of none.spread.compact' run m -p x \
        --affinity="$list"
done
gives bad_priority 1 '\-\-priority is "top"; wanted one of low.normal.high.realtime' run m -p x \
    --priority top
gives bad_numa 1 '\-\-numa is "on"; wanted one of off.spread.isolate' run m -p x --numa on
PITH_AFFINITY=x gives bad_affinity_env 1 'PITH_AFFINITY is "x"' run m -p x
PITH_NUMA=x gives bad_numa_env 1 'PITH_NUMA is "x"' run m -p x
PITH_PRIORITY=x gives bad_priority_env 1 'PITH_PRIORITY is "x"' run m -p x
gives both_prompts 1 'both --prompt - and --file' run m -p - -f b
gives text_and_jsonl 1 'TEXT and --jsonl' tokenize m text --jsonl
gives nothing_to_measure 1 'nothing to measure' bench m -p 0 -n 0
gives bad_tokens 1 'number 2 is "x"; wanted a token id' logits m --tokens 1,x --out "$dir/l"
gives no_tokens 1 'found no token' logits m --tokens , --out "$dir/l"
PITH_THREADS=0 gives bad_environment 1 \
    'PITH_THREADS is "0"; wanted a whole number or auto, from 1 to 1024' run m -p x
PITH_THREADS=0 gives flag_over_environment 2 'absent' run "$dir/absent" -t 1 -p x

gives bad_sampler 1 '\-\-xtc-probability is "2"; wanted a number from 0 to 1' run m \
    --xtc-probability 2
gives sample_needs_a_way 1 'wanted one of --jsonl and --list' sample

# ---------------------------------------------------------------- grammars without a model

gives grammar_text 0 '^accept$' grammar --grammar 'root ::= "a" | "b"' b
gives schema_text 0 '^reject$' grammar --schema '{"type": "integer"}' x
gives grammar_text_bad 2 "line 1: the text ends; wanted ']'" grammar --grammar 'root ::= [a-' x
gives grammar_no_file 2 'absent: cannot open' grammar --schema "$dir/absent" x

# ---------------------------------------------------------------- samplers without a model

gives sample_list 0 '^top_p: p=0..1 \(0.95\), min_keep=' sample --list
printf '%s\n' '{"logits": [1, 3, null, 2], "chain": [["top_k", {"k": 2}]]}' 'no json' '{}' '[]' '' \
    '{"logits": [], "chain": []}' '{"logits": [1, "2"], "chain": []}' \
    '{"logits": [1], "chain": 1}' \
    '{"logits": [1], "chain": [["no_such"]]}' '{"logits": [1], "chain": [["top_p", {"p": 1.5}]]}' \
    '{"logits": [1], "chain": [["top_p", {"q": 1}]]}' \
    '{"logits": [1], "chain": [["top_k", {"k": 1.5}]]}' \
    '{"logits": [1], "chain": [["temp", {"t": "hot"}]]}' \
    '{"logits": [1], "chain": [], "history": [1]}' \
    '{"logits": [1], "chain": [["logit_bias", {"bias": [[1, 2]]}]]}' \
    '{"logits": [1], "chain": [["dry", {"multiplier": 1, "breakers": [[-2]]}]]}' \
    '{"logits": [1, 1], "chain": [["logit_bias", {"bias": [[1, null]]}], ["greedy", {}]]}' \
    >"$dir/queries"
"$pith" sample --jsonl <"$dir/queries" >"$out" 2>"$err"
same sample_status $? 0
same sample_errors "$(grep -n '^{"error":"..*"}' "$out" | cut -d: -f1 | tr '\n' ' ')" \
    "2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 "
same sample_first "$(sed -n 1p "$out" | cut -c 1-31)" '{"ids":[1,3],"probs":[0.7310585'
same sample_bias "$(sed -n 17p "$out")" '{"ids":[0],"probs":[1.0]}'
grep -q 'top_p: p is 1.5; wanted 0 to 1' "$out"
same sample_says_range $? 0
printf '{"logits": %s' "$(printf '[%.0s' $(seq 5000))" | "$pith" sample --jsonl | grep -q '"error"'
same sample_deep $? 0

# ---------------------------------------------------------------- wrong input: status 2

: >"$dir/empty"
echo 'not a model' >"$dir/text"
head -c 65536 /dev/urandom >"$dir/noise"
for c in run bench inspect logits tokenize; do
    case $c in
    run) more='-p x' ;;
    logits) more="--tokens 1 --out $dir/l" ;;
    tokenize) more=x ;;
    *) more= ;;
    esac
    # shellcheck disable=SC2086
    {
        gives "${c}_missing_file" 2 'absent.*No such file' $c "$dir/absent" $more
        gives "${c}_directory" 2 'directory' $c "$dir" $more
        gives "${c}_empty_file" 2 'empty' $c "$dir/empty" $more
        gives "${c}_not_gguf" 2 'GGUF' $c "$dir/text" $more
        gives "${c}_noise" 2 'GGUF' $c "$dir/noise" $more
    }
done
same no_output_after_failure "$(ls "$dir"/l* 2>/dev/null)" ""

# ---------------------------------------------------------------- stdout that fails: status 3

if [ -w /dev/full ]; then
    timeout 20 "$pith" --help >/dev/full 2>"$err"
    same full_stdout "$? $(grep -c 'stdout: No space' "$err")" "3 1"
else
    skip full_stdout "no /dev/full"
fi
timeout 20 "$pith" --help >&- 2>"$err"
same closed_stdout "$? $(grep -c 'stdout: Bad file' "$err")" "3 1"
timeout 20 "$pith" run --help 2>&- >"$out"
same closed_stderr "$? $(grep -c Usage "$out")" "0 1"

# ---------------------------------------------------------------- a model

gives synth_unknown_arch 2 'unknown .*"no-such-arch"; Known are .*qwen3,' synth "$dir/x.gguf" \
    --arch no-such-arch
gives synth_near_arch 2 'did you mean qwen2' synth "$dir/x.gguf" --arch qwen2s
gives synth_unknown_type 2 'q99.* is none of: f32 .* q8_0 .* q4_K ' synth "$dir/x.gguf" --type q99
gives synth_unknown_key 2 'pith inspect --arch qwen3 lists' synth "$dir/x.gguf" -a qwen3 --key foo=1
gives synth_unknown_tensor 2 'pith inspect --arch llama lists' synth "$dir/x.gguf" --tensor nope
gives synth_other_type 0 '^pith: 16 matrices are q8_0: their rows are no whole blocks of q4_K' \
    synth "$dir/x.gguf" --type q4_K
same synth_other_type_is_there "$("$pith" inspect "$dir/x.gguf" | grep -c ' q8_0 ')" 16
gives synth_other_types 0 '^pith: 14 matrices are f16: their rows .* Q8_0' \
    synth "$dir/x.gguf" --type Q8_0 --embd 48
"$pith" synth "$dir/x.gguf" --type q4_K --embd 256 --ff 256 >"$out" 2>&1
same synth_type_as_asked "$(cat "$out")" ""
"$pith" synth "$dir/traced.gguf" --vocab 300 >"$out" 2>&1
traced="logits $dir/traced.gguf --out $dir/l --tokens"
gives trace_nowhere 2 "none/t.json" $traced 1,2 --trace "$dir/none/t.json"
gives trace_behind_an_error 2 "99999" $traced 1,99999 --trace "$dir/t.json"
same trace_is_whole "$(tail -n 1 "$dir/t.json")" "]"
gives synth_device 0 "" synth /dev/null
[ -c /dev/null ] || fail synth_device "/dev/null was replaced"
# What is open is written as it is, and a link stays.
"$pith" synth - --vocab 300 >"$dir/stdout.gguf"
same synth_stdout "$(cmp "$dir/stdout.gguf" "$dir/traced.gguf" 2>&1)" ""
"$pith" synth - --vocab 300 | cmp - "$dir/traced.gguf" >"$out" 2>&1
same synth_pipe "$(cat "$out")" ""
: >"$dir/fd.gguf"
"$pith" synth "/proc/self/fd/5" --vocab 300 5>"$dir/fd.gguf"
same synth_descriptor "$(cmp "$dir/fd.gguf" "$dir/traced.gguf" 2>&1)" ""
"$pith" logits "$dir/traced.gguf" --tokens 1 --out "$dir/l5"
"$pith" logits "$dir/traced.gguf" --tokens 1 --out /proc/self/fd/5 5>"$dir/fd"
same logits_descriptor "$(cmp "$dir/fd" "$dir/l5" 2>&1)" ""
mkdir "$dir/far"
for made in "synth FILE --vocab 300" "logits $dir/traced.gguf --tokens 1 --out FILE"; do
    : >"$dir/far/x" && ln -sf far/x "$dir/link"
    "$pith" ${made/FILE/$dir/link}
    same "${made%% *}_through_a_link" "$(readlink "$dir/link") $(test -s "$dir/far/x"; echo $?)" \
        "far/x 0"
done
m=$dir/tiny.gguf
# A type without a kernel is named without being asked; all types have one.
types="nvfp4 q1_0 q2_0 tq1_0 tq2_0 iq2_s" n_drawn=20 n_other=5
[ "${TEST_SCALE:-1}" -ge 10 ] || types="nvfp4 q2_0" n_drawn=6 n_other=3
for type in $types; do
    "$pith" synth "$dir/fast.gguf" --arch llama --type $type --embd 256 --ff 256
    "$pith" run "$dir/fast.gguf" -p a -n 1 >"$out" 2>"$err"
    same "fast_$type" "$? $(grep -c 'fast kernel' "$err")" "0 0"
done
# A level that is not there is told, and layers on GPUs where there is none.
if [ "$(uname -m)" = x86_64 ] && ! grep -q amx_int8 /proc/cpuinfo; then
    PITH_CPU=amx gives level_missing 0 'PITH_CPU is amx, which this machine has not: it runs with' \
        run "$dir/fast.gguf" -p a -n 1
    PITH_CPU=amx gives level_missing_strict 2 'strict: PITH_CPU is amx' \
        run "$dir/fast.gguf" -p a -n 1 --strict
fi
gives no_gpu 0 'layers were asked for on GPUs, and there is none' \
    run "$dir/fast.gguf" -p a -n 1 -ngl 9 --device CPU
gives no_gpu_strict 2 'strict: layers were asked for on GPUs' \
    run "$dir/fast.gguf" -p a -n 1 -ngl all --device CPU --strict
gives no_gpu_auto 0 '' run "$dir/fast.gguf" -p a -n 1 --device CPU --strict
# So is an op, which is not the weights' fault: attention with lists over K in blocks has none.
"$pith" synth "$dir/lists.gguf" --arch minimax-m3 --head-dim 32
run="run $dir/lists.gguf -p w5 -n 1 --cache-type-k"
gives op_without_kernel 0 'no kernel on this machine for attn: ' $run q8_0
same op_has_no_type "$(grep -c 'weights of type' "$err")" 0
gives op_without_kernel_strict 2 'attn \(attn\) has no kernel on CPU .*; drop --strict$' $run q8_0 \
    --strict
gives op_with_kernel 0 '' $run f16 --strict
same op_with_kernel_is_quiet "$(grep -c 'no kernel' "$err")" 0
gives synth 0 '' synth "$m" --arch llama --type q8_0 --seed 7
"$pith" synth "$dir/again.gguf" --arch llama --type q8_0 --seed 7
"$pith" synth "$dir/other.gguf" --arch llama --type q8_0 --seed 8
cmp -s "$m" "$dir/again.gguf" && ! cmp -s "$m" "$dir/other.gguf"
same synth_repeats $? 0
if [ ! -s "$m" ]; then
    skip cli_with_model "pith synth wrote nothing"
    finish
fi

# rows of matrices over two devices: the same text, and who has how much of them
"$pith" run "$m" --raw -p ab -n 4 --temp 0 >"$dir/one.txt" 2>"$err"
PITH_FAR_DEVICES=2 gives split_rows 0 \
    'rows of 15 matrices, .* are split: FAR0 [0-9]+ bytes, FAR1 [0-9]+ bytes' \
    run "$m" --raw -p ab -n 4 --temp 0 -sm row -ts 3,1 -v
same split_rows_text "$(cat "$out")" "$(cat "$dir/one.txt")"
PITH_FAR_DEVICES=1 gives split_rows_alone 2 'wants two devices or more, there is FAR0 alone' \
    run "$m" -p a -n 1 --split-mode row
gives main_gpu_of_none 2 'main_gpu is 3, there are 0 GPUs' run "$m" -p a -n 1 -mg 3 --device CPU
gives main_gpu_first 0 '' run "$m" -p a -n 1 -mg 0 --device CPU
gives split_help_tells_of_heads 0 'heads with their cache' run --help
gives split_unknown 1 'wanted one of layer\|none\|row' run "$m" -p a -sm rows

gives inspect 0 '^[0-9]+ tensors' inspect "$m"
gives inspect_json 0 '"gguf_version": 3' inspect "$m" --json
gives inspect_runs 0 '^this build runs it$' inspect "$m"
LC_ALL=C sed 's/llama/wings/g; s/blk\.1\.ffn_up/blk.1.ffn_zz/' "$m" >"$dir/wings.gguf"
gives inspect_arch 0 '^  qwen3moe.block_count +whole number, 1..1024; needed$' \
    inspect --arch qwen3moe
gives inspect_arch_tensor 0 '^  blk.N.ffn_down_exps.weight +\[X, E, FX\] +experts +needed' \
    inspect --arch deepseek4
gives inspect_arch_json 0 '"name": "llama.context_length"' inspect --arch llama --json
gives inspect_archs 0 '^gemma3n$' inspect --arch
gives inspect_arch_unknown 2 'unknown architecture "lama"; did you mean llama\?' inspect --arch lama
gives inspect_without_file 1 'FILE is missing' inspect
gives inspect_unknown 0 'unknown architecture "wings"; nearest is llama, .* lacks blk.0.ffn_zz' \
    inspect "$dir/wings.gguf"
gives inspect_unknown_json 0 '"runs": ".*unknown architecture' inspect "$dir/wings.gguf" --json
gives run_unknown 2 'unknown architecture "wings"; nearest is llama' run "$dir/wings.gguf" -p x
if command -v python3 >/dev/null 2>&1; then
    "$pith" inspect "$m" --json --max-items 2 | python3 -c '
import json, sys
d = json.load(sys.stdin)
arrays = [k["value"] for k in d["keys"] if k["type"].startswith("arr")]
assert d["tensors"] and d["n_params"] > 0 and d["bytes"] > 0 and d["runs"] is True
assert all(len(a) <= 3 for a in arrays)
print("well")' >"$out" 2>&1
    same inspect_json_parses "$(tail -n 1 "$out")" well
else
    skip inspect_json_parses "no python3"
fi

same ctx_zero_is_none "$("$pith" run "$m" -p a -n 4 --temp 0 -c 0 2>&1)" \
    "$("$pith" run "$m" -p a -n 4 --temp 0 2>&1)"
gives think_without_template 1 'the model has no chat template; --chat-template gives one' \
    run "$m" -p a --think on

# cache types
"$pith" synth "$dir/heads.gguf" --arch llama --type q8_0 --head-dim 32
types=$(sed -nE 's/^#define CACHE_TYPES "(.*)"/\1/p' cli/cli.h | tr '|' ' ')
[ -n "$types" ] || fail cache_types "found no list in cli/cli.h"
for t in $types; do
    gives "cache_$t" 0 '' run "$dir/heads.gguf" -p x -n 2 --cache-type-k $t --cache-type-v $t \
        </dev/null
done
gives cache_head_size 2 'heads of V have 16 elements, a cache of q8_0 needs a multiple of 32' run \
    "$m" -p x --cache-type-v q8_0 </dev/null

# values on their way: 3 rows of 64 columns
gives tap 0 '' logits "$m" --tokens 1,2,3 --tap visit.1 --out "$dir/a"
gives tap_pieces 0 '' logits "$m" --tokens 1,2,3 --tap visit.1 --out "$dir/b" --chunk 2
cmp -s "$dir/a" "$dir/b"
same tap_same_bits $? 0
same tap_bytes "$(wc -c <"$dir/a")" 768
gives steps_of_no_masks 1 'found --steps, and .* makes a token in each' run "$m" --raw -p x \
    --steps 4
printf 'root ::= "ab"' >"$dir/ab.gbnf"
gives grammar_of_stdin_beside_a_prompt 0 '^ab$' run "$m" --raw -p x --grammar - --temp 0 \
    <"$dir/ab.gbnf"
same grammar_of_stdin_says_no_more "$(cat "$err")" ""
case $commands in *serve*)
    gives slots_without_a_folder 2 "slot-save-path $dir/no: there is no such folder" serve "$m" \
        --port 0 --slot-save-path "$dir/no" ;;
esac
gives tap_and_pooling 1 'found --tap, .* and --pooling' logits "$m" --tokens 1 --tap end \
    --pooling mean --out "$dir/b"
gives tap_unknown 2 'no tap "visit.9"; wanted one of visit.0 .. visit.2, end' logits "$m" \
    --tokens 1 --tap visit.9 --out "$dir/b"

# a model whose encoder reads what its decoder writes about
t5=$dir/t5.gguf
gives t5_synth 0 '' synth "$t5" --arch t5 --seed 3
read_ids=9,2,6,5,3,5,8,30,31
gives t5_logits 0 '' logits "$t5" --encoder-tokens $read_ids --tokens 0,4,9,11 --out "$dir/a"
echo "9 2 6 5 3 5 8 30 31" >"$dir/ids"
gives t5_pieces 0 '' logits "$t5" --encoder-tokens "@$dir/ids" --tokens 0,4,9,11 --out "$dir/b" \
    --chunk 3 -t 2
cmp -s "$dir/a" "$dir/b"
same t5_same_bits $? 0
gives t5_other 0 '' logits "$t5" --encoder-tokens 9,2,6 --tokens 0,4,9,11 --out "$dir/b"
cmp -s "$dir/a" "$dir/b"
same t5_other_bits $? 1
gives t5_tap 0 '' logits "$t5" --encoder-tokens $read_ids --tokens 0 --tap encoder.end \
    --out "$dir/b"
same t5_tap_bytes "$(wc -c <"$dir/b")" 2304
gives t5_without 1 '\-\-encoder-tokens: t5 has an encoder' logits "$t5" --tokens 0 --out "$dir/c"
gives t5_none 1 '\-\-encoder-tokens: llama has no encoder' logits "$m" --encoder-tokens 4 \
    --tokens 1 --out "$dir/c"
gives t5_bad_id 2 'token 1 is 999999' logits "$t5" --encoder-tokens 4,999999 --tokens 0 \
    --out "$dir/c"
gives t5_bad_number 1 '\-\-encoder-tokens: number 2 is "x"' logits "$t5" --encoder-tokens 4,x \
    --tokens 0 --out "$dir/c"
gives t5_too_long 2 'n_prompt = 9, at most 4' logits "$t5" --encoder-tokens $read_ids --tokens 0 \
    --out "$dir/c" -c 4
[ ! -e "$dir/c" ]
same t5_no_file $? 0
gives t5_run 0 '' run "$t5" -p 'a b c' -n 5 --temp 0 --ignore-eog
gives t5_shifts 0 '' run "$t5" -p 'a b c' -n 40 -c 16 --temp 0 --ignore-eog --context-shift
gives t5_read 0 '' run "$t5" -p 'a b c' -n 0
gives t5_full 2 'n_prompt = 1, n_ctx = 16' run "$t5" -p 'a b c' -n 40 -c 16 --ignore-eog
gives t5_prompt_too_long 2 'the encoder.s text exceeds' run "$t5" -p "$(printf 'ab %.0s' \
    $(seq 99))" -n 4 -c 16
gives t5_bench 2 '^pith: .*t5.gguf has an encoder beside its decoder' bench "$t5" -n 4
gives t5_embed 2 '^pith: .*t5.gguf has an encoder beside its decoder' embed "$t5" hi
gives t5_session 1 'found --session' run "$t5" -p 'a b c' -n 5 --session "$dir/t5.session"
"$pith" synth "$dir/mamba.gguf" --arch mamba2 >"$out" 2>&1
gives mamba_shifts 1 'found --context-shift, and the positions of .* cannot be shifted' \
    run "$dir/mamba.gguf" -p 'a b' -n 4 --context-shift
gives mamba_extends 1 'found --ga-n' run "$dir/mamba.gguf" -p 'a b' -n 4 --ga-n 2 --ga-w 8

# logits: sizes, chunks, threads and files of ids give the same bytes
ids=3,1,4,1,5,9,2,6,5,3,5,8
gives logits 0 '' logits "$m" --tokens $ids --out "$dir/a"
size=$(stat -c %s "$dir/a" 2>/dev/null || echo 1)
same logits_size $((size % (4 * 12))) 0
echo "3 1 4 1, 5 9 2 6
5 3	5 8" >"$dir/ids"
gives logits_file 0 '' logits "$m" --tokens "@$dir/ids" --out "$dir/b" --chunk 5 -t 2
cmp -s "$dir/a" "$dir/b"
same logits_chunks $? 0
gives logits_bad_id 2 '[0-9]' logits "$m" --tokens 1,999999 --out "$dir/c"
gives logits_over_context 2 'n_ctx' logits "$m" --tokens $ids --out "$dir/c" -c 4
gives logits_no_ids 2 'No such file' logits "$m" --tokens "@$dir/absent" --out "$dir/c"
gives logits_no_folder 3 'absent' logits "$m" --tokens 1 --out "$dir/absent/c"
gives logits_device 0 '' logits "$m" --tokens 1 --out /dev/null
[ -c /dev/null ]
same logits_device_stays $? 0
gives logits_full_device 3 'No space left' logits "$m" --tokens 1 --out /dev/full
gives logits_folder 2 'is a folder' logits "$m" --tokens 1 --out "$dir"
mkfifo "$dir/pipe"
"$pith" logits "$m" --tokens 1 --out "$dir/file" 2>/dev/null
cat "$dir/pipe" >"$dir/piped" &
gives logits_pipe 0 '' logits "$m" --tokens 1 --out "$dir/pipe"
wait $!
same logits_through_a_pipe "$(cksum <"$dir/piped")" "$(cksum <"$dir/file")"
cat "$dir/pipe" >"$dir/piped" &
gives synth_pipe 0 '' synth "$dir/pipe" --seed 3
wait $!
"$pith" synth "$dir/plain.gguf" --seed 3
same synth_through_a_pipe "$(cksum <"$dir/piped")" "$(cksum <"$dir/plain.gguf")"
[ -p "$dir/pipe" ]
same the_pipe_stays $? 0
gives synth_folder 2 'is a folder' synth "$dir"
gives run_session_device 0 '' run "$m" -p a -n 1 --session /dev/null
"$pith" logits "$m" --tokens 1 --out - >"$dir/piped"
same logits_stdout "$(cksum <"$dir/piped") $([ -e - ] && rm - && echo file)" \
    "$(cksum <"$dir/file") "
"$pith" logits "$m" --tokens 1 -o - | cat >"$dir/piped"
same logits_stdout_pipe "$(cksum <"$dir/piped")" "$(cksum <"$dir/file")"
"$pith" embed "$m" --npy "$dir/file" a bc && "$pith" embed "$m" --npy - a bc >"$dir/piped"
same npy_stdout "$(cksum <"$dir/piped")" "$(cksum <"$dir/file")"
if command -v script >/dev/null 2>&1; then
    script -qec "'$pith' logits '$m' --tokens 1 -o -" /dev/null >"$out"
    same logits_no_terminal "$? $(grep -c '^pith: - is a terminal' "$out")" "1 1"
else
    skip logits_no_terminal "there is no script"
fi
same logits_leave_nothing "$(ls "$dir"/c* "$dir"/*tmp* 2>/dev/null)" ""

# bench
gives bench_json 0 '"test": "tg4@d8x2"' bench "$m" -p 16 -n 4 -d 8 -np 2 -r 2 -t 1 -o json \
    -ctk bf16 --weights mapped
if command -v python3 >/dev/null 2>&1; then
    python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))
assert [r["test"] for r in rows] == ["pp16@d8x2", "tg4@d8x2", "pp16+tg4@d8x2"], rows
for r in rows:
    for key in "backend device model type commit".split():
        assert isinstance(r[key], str), key
    assert r["n_threads"] == 1 and r["n_seqs"] == 2
    assert r["tps"] > 0 and r["tps_std"] >= 0 and r["limit_tps"] > 0 and r["share"] > 0
    assert r["cpu_tps"] > 0
    assert r["n_depth"] == 8 and r["type_k"] == "bf16" and r["type_v"] == "f16", r
    assert r["test_time"].endswith("Z") and r["weights"] == "mapped" and r["n_batch"] == 512
assert [(r["n_prompt"], r["n_gen"]) for r in rows] == [(16, 0), (0, 4), (16, 4)]
print("well")' "$out" >"$dir/well" 2>&1
    same bench_json_parses "$(tail -n 1 "$dir/well")" well
else
    skip bench_json_parses "no python3"
fi
gives bench_threads 0 ' 2  pp4 ' bench "$m" -p 4 -n 2 -r 1 -t 1 -tb 2
same bench_threads_decode "$(grep -c ' 1  tg2 ' "$out")" 1
# what sees its text whole decodes nothing
"$pith" synth "$dir/bert.gguf" --arch bert --key attention.causal=0
gives bench_whole 0 'bert.gguf takes a text whole: decode tests .tg. are left out$' \
    bench "$dir/bert.gguf" -p 8 -p 16 -r 1 -t 1 --csv
same bench_repeated "$(sed 1d "$out" | cut -d, -f1 | tr '\n' ' ')" '"pp8" "pp16" '
"$pith" synth "$dir/short.gguf" --arch bert --key attention.causal=0 --ctx 48
gives bench_whole_short 0 '^"pp48",' bench "$dir/short.gguf" -r 1 -t 1 --csv
gives bench_whole_steps 2 '^pith: -n: .*takes a text whole' bench "$dir/bert.gguf" -p 8 -n 4 -r 1
gives bench_whole_nothing 2 '^pith: -n: .*takes a text whole' bench "$dir/bert.gguf" -p 0 -r 1
gives bench_whole_depth 2 '^pith: -d: .*takes a text whole' bench "$dir/bert.gguf" -p 8 -d 4 -r 1
gives bench_whole_batch 2 '^pith: -b is 8: .*wanted 32 ' bench "$dir/bert.gguf" -p 2,16 -b 8 \
    -np 2
# Each measures the machine, too: some of the forms in make check, all in make test.
all_forms() { [ "${TEST_SCALE:-1}" -lt 10 ] || gives "$@"; }
# a file may say that texts are pooled, which tests of a decoder leave alone
"$pith" synth "$dir/pools.gguf" --arch qwen3 --key pooling_type=3
all_forms bench_of_who_pools 0 '^"tg2",' bench "$dir/pools.gguf" -p 0 -n 2 -r 1 -t 1 --csv
all_forms bench_md 0 '^\| .* \| pp8 \|' bench "$m" -p 8 -n 0 -r 1 -t 1 --md
all_forms bench_text 0 '^.* pp8 +[0-9.]+ +[0-9.]+ ' bench "$m" -p 8 -n 0 --repeat 1 -t 1
all_forms bench_lists 0 'tg2@d4x3' bench "$m" -p 8,16 -n 1,2 -d 0,4 -np 1,3 -r 1 -t 1,2 -o csv
[ "${TEST_SCALE:-1}" -lt 10 ] ||
    same bench_lists_all "$(tail -n +2 "$out" | cut -d, -f1 | sort | uniq -c |
        awk '{n++; s += $1} END {print n, s}')" "24 48"
all_forms bench_total 0 '^"pp8\+tg2",' bench "$m" -p 8 -n 2 -r 1 -t 1 --total --csv
all_forms bench_ops 0 '^  matmul +q8_0 +[0-9]+ +[0-9.]+ +[0-9.]+' bench "$m" -p 8 -n 2 -r 1 \
    -t 1 --ops
all_forms bench_ops_md 0 '^\| matmul \| q8_0 \|' bench "$m" -p 8 -n 0 -r 1 -t 1 --ops --md
all_forms bench_ops_share 0 '"share_of": "(bandwidth|arithmetic)"' bench "$m" -p 8 -n 2 -r 1 -t 1 \
    --ops -o json
all_forms bench_ops_device 0 '"device": "CPU"' bench "$m" -p 8 -n 0 -r 1 -t 1 --ops -o json
all_forms bench_ops_json 0 '"time_share"' bench "$m" -p 8 -n 0 -r 1 -t 1 --ops --json
gives bench_ops_csv 1 'does not fit into csv' bench "$m" --ops --csv
gives bench_two_forms 1 'one of them' bench "$m" --json --csv
all_forms bench_csv 0 '^test,backend,device' bench "$m" -p 8 -n 0 -r 1 -t 1 -o csv
# A device that measures nothing has no limit, and the CPU's is not taken for it.
PITH_FAR_DEVICES=1 gives bench_without_limit 0 'FAR0: no limit is measured' bench "$m" \
    --device FAR0 -ngl all -p 4 -n 2 -r 1 -t 1
PITH_FAR_DEVICES=1 all_forms bench_says_none 0 'pp4 +[0-9.]+ +[0-9.]+ +- +-$' bench "$m" \
    --device FAR0 -ngl all -p 4 -n 0 -r 1 -t 1

# ---------------------------------------------------------------- threads

logits_with() { "$pith" logits "$m" --tokens 1,2,3 --out "$dir/t" "$@" >"$out" 2>"$err" &&
    cksum <"$dir/t"; }
want=$(logits_with -t 1)
for flags in '-t 3' '-t 1 --threads-prefill 4' '--affinity spread' '--affinity compact -t 4' \
    '--affinity 0' '--numa isolate' \
    '--numa spread -t 2' '--priority low' '--priority realtime'; do
    # shellcheck disable=SC2086
    same "same_bits_$flags" "$(logits_with $flags)" "$want"
done
gives affinity_not_ours 2 'names 1 processors this process may not use' logits "$m" --tokens 1 \
    --out "$dir/t" --affinity 1023

export PITH_CACHE=$dir/cache/deep
same auto_bits "$(logits_with -t auto -v)" "$want"
same auto_measures \
    "$(grep -c '^pith: measured: [0-9]* threads to decode, [0-9]* for prefill; kept in ' "$err")" 1
kept=$(echo "$PITH_CACHE"/*)
whole=$(<"$kept")
logits_with -t auto -v >"$out"
same auto_remembers "$(grep -c measured "$err")" 0
other=${whole/'"decode":'/'"decode":1'}
for what in 'cut' 'other version' 'empty' 'no json' 'wrong count'; do
    [ "${TEST_SCALE:-1}" -ge 10 ] || [ "$what" = 'other version' ] || continue # each measures
    case $what in
    cut) printf '%s' "${whole:0:40}" ;;
    empty) ;;
    'no json') echo '[[[' ;;
    'wrong count') printf '%s' "$other" ;;
    *) printf '%s' "${whole/'"version":"'/'"version":"9'}" ;;
    esac >"$kept"
    logits_with -t auto -v >"$out"
    same "auto_again_after_$what" "$(grep -c 'pith: measured' "$err") $(tr -d 0-9a-f <"$kept")" \
        "1 $(tr -d 0-9a-f <<<"$whole")"
done
same auto_leaves_one_file "$(ls "$PITH_CACHE" | wc -l)" 1
PITH_CACHE=/dev/null/x logits_with -t auto >"$out"
same auto_unwritable \
    "$(grep -c 'note: measured thread counts cannot be kept in /dev/null/x/.*: Not a directory' \
    "$err") $(<"$out")" "1 $want"
unset PITH_CACHE
XDG_CACHE_HOME=$dir/xdg logits_with -t auto >"$out"
same auto_xdg "$(ls "$dir/xdg/pith" | grep -c '^threads-.*json$')" 1

# ---------------------------------------------------------------- text

text=$shared/vectors/models/stories260K.gguf
if [ ! -r "$text" ]; then
    skip cli_text "no vectors/models in the shared data"
    finish
fi
gives tokenize 0 '^1,403,407,261,378$' tokenize "$text" 'Once upon a time'
same tokenize_stdin "$(printf 'Once upon a time' | "$pith" tokenize "$text")" 1,403,407,261,378
same tokenize_bare "$("$pith" tokenize "$text" --bare 'Once upon a time')" 403,407,261,378
printf '%s\n' '{"text": "Once", "add_special": true}' 'no json' '{"text": 5}' '{}' '[]' '' \
    '{"text": "a", "b64": "YQ=="}' '{"b64": "?"}' '{"b64": "T25jZQ=="}' '{"b64": "/w=="}' \
    '{"text": "a\u0000b"}' '{"text": "x", "special": 1}' >"$dir/lines"
printf '{"text": "Once"}' >>"$dir/lines" # without an end of line
"$pith" tokenize "$text" --jsonl <"$dir/lines" >"$out" 2>"$err"
same jsonl_status $? 0
same jsonl_answers "$(wc -l <"$out")" 13
same jsonl_errors "$(grep -n '^{"error":".' "$out" | cut -d: -f1 | tr '\n' ' ')" "2 3 4 5 6 7 8 12 "
same jsonl_first "$(sed -n 1p "$out")" '{"ids":[1,403],"detok":"<s> Once"}'
same jsonl_base64 "$(sed -n 9p "$out")" "$(sed -n 13p "$out")"
same jsonl_bytes "$(sed -n 10p "$out" | grep -c '"detok_b64":"')" 1
printf '{"text": %s' "$(printf '[%.0s' $(seq 5000))" >"$dir/deep"
gives jsonl_deep 0 '"error"' tokenize "$text" --jsonl <"$dir/deep"

gives run 0 '' run "$text" -p 'Once upon a time' -n 8 -t 1 --temp 0
first=$(cat "$out")
same run_is_quiet "$(cat "$err")" ""
same run_stdin "$(printf 'Once upon a time' | "$pith" run "$text" -n 8 --temp 0)" "$first"
printf 'Once upon a time' >"$dir/prompt"
same run_file "$("$pith" run "$text" -f "$dir/prompt" -n 8 --temp 0 </dev/null)" "$first"
same run_top_k_1 "$("$pith" run "$text" -p 'Once upon a time' -n 8 --temp 1 --top-k 1)" "$first"
draw() { "$pith" run "$text" -p 'Once upon a time' -n 40 --temp 1.2 --top-p 0.95 --min-p 0.02 \
    --seed "$1" "${@:2}"; }
same run_seed_repeats "$(draw 5)" "$(draw 5 -t 2)"
[ "$(draw 5)" != "$(draw 6)" ]
same run_seeds_differ $? 0
word=$(awk '{print $3; exit}' <<<"$first")
stopped=$("$pith" run "$text" -p 'Once upon a time' -n 8 --temp 0 --stop "$word")
same run_stop "$stopped" "${first%%"$word"*}"
same run_bias "$("$pith" run "$text" -p 'Once upon a time' -n 1 --logit-bias 100=1000)" \
    "$("$pith" run "$text" -p 'Once upon a time' -n 1 --temp 2 --logit-bias 100=1000)"
said() { "$pith" run "$text" -p 'Once upon a time' -n 9 --seed 3 "$@"; }
same run_bias_of_any_chain "$(said -n 1 --logit-bias 100=1000)" \
    "$(said -n 1 --samplers 'top_k;temp' --logit-bias 100=1000)"
same run_samplers_by_other_names "$(said --samplers 'typ_p:p=0.5;temperature')" \
    "$(said --samplers 'typical:p=0.5;temp_ext')"
same run_mirostat_for_chain "$(said --mirostat 2)" \
    "$(said --mirostat 2 --samplers 'temp:t=9' 2>"$dir/mirostat")"
same run_mirostat_for_chain_is_told \
    "$(grep -c -- '--mirostat 2 takes the place of --samplers' "$dir/mirostat")" 1
same run_chain_for_the_model_s_mirostat "$(said --samplers 'top_k;temp')" \
    "$(said --samplers 'top_k;temp' --override-kv general.sampling.mirostat=int:2)"
gives run_bad_bias 1 'logit-bias is "x=1"; wanted ID=X' run "$text" -p x --logit-bias x=1
gives run_bias_range 2 'logit_bias id.* is 5120; wanted 0 to 511' run "$text" -p x --logit-bias \
    5120=1
gives run_bad_chain 2 'unknown sampler "top_q"; wanted some of: logit_bias ' \
    run "$text" -p x --samplers 'temp;top_q'
gives run_bad_chain_value 2 'temp: t is .*nan; wanted' run "$text" -p x --samplers 'temp:t=nan'
same run_chain "$("$pith" run "$text" -p 'Once upon a time' -n 8 --samplers 'top_k:k=1;temp:t=2')" \
    "$first"
every=$("$pith" run "$text" -p 'Once upon a time' -n 30 --temp 1 --dynatemp-range 0.5 --top-k 40 \
    --top-p 0.95 \
    --min-p 0.01 --typical 0.95 --top-n-sigma 3 --xtc-probability 0.5 --repeat-penalty 1.1 \
    --dry-multiplier 0.8 --adaptive-target 0.3 --seed 3)
same run_every_sampler_repeats "$every" "$("$pith" run "$text" -p 'Once upon a time' -n 30 --seed \
    3 --temp 1 \
    --dynatemp-range 0.5 --top-k 40 --top-p 0.95 --min-p 0.01 --typical 0.95 --top-n-sigma 3 -t 1 \
    --xtc-probability 0.5 --repeat-penalty 1.1 --dry-multiplier 0.8 --adaptive-target 0.3)"
# What a run is sampled with where it does not say: the file's advice, else what all programs of
# pith do.
plain() { "$pith" run "$text" -p 'Once upon a time' -n 40 --seed 5 "$@"; }
same run_usual "$(plain)" "$(plain --temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05)"
[ "$(plain)" != "$(plain --temp 0.8 --top-k 0 --top-p 1 --min-p 0)" ]
same run_usual_is_that $? 0
advice=(--override-kv general.sampling.temp=float:1.5 --override-kv general.sampling.top_k=int:7
    --override-kv general.sampling.min_p=float:0)
same run_temp_below_zero "$(plain --temp -1)" "$(plain --temp 0)"
same run_advice_of_the_file "$(plain "${advice[@]}")" "$(plain --temp 1.5 --top-k 7 --min-p 0)"
same run_flag_over_advice "$(plain "${advice[@]}" --temp 0)" "$(plain --temp 0)"
same run_advice_greedy "$(plain --override-kv general.sampling.temp=float:0)" "$(plain --temp 0)"
gives run_bad_advice 0 'general.sampling.temp: wanted a number from -100 to 100; it is not used' \
    run "$text" -p a -n 1 --override-kv general.sampling.temp=float:-101
same run_advice_below_zero "$(plain --override-kv general.sampling.temp=float:-1)" \
    "$(plain --temp 0)"
gives run_mirostat 0 . run "$text" -p 'Once upon a time' -n 20 --temp 1 --mirostat 2 \
    --mirostat-ent 3 --seed 1
gives run_verbose 0 'tokens/s' run "$text" -p Once -n 4 -v
same run_verbose_text "$("$pith" run "$text" -p 'Once upon a time' -n 8 --temp 0 -v \
    2>/dev/null)" "$first"
gives run_over_context 2 'n_prompt.*n_ctx.*n_over.*-c sets its size' \
    run "$text" -p 'Once upon a time there was a girl' -c 4
gives run_full_context 2 'n_prompt = .*n_ctx = 8, n_over = ' \
    run "$text" -p Once -n 30 -c 8 --ignore-eog
gives run_until_full 0 '' run "$text" -p Once -n -2 -c 8
gives run_context_shift 0 '' run "$text" -p Once -n 30 -c 8 --ignore-eog --context-shift --keep 1 \
    --discard 2
gives run_self_extend 0 '' run "$text" -p Once -n 30 -c 64 --ignore-eog --ga-n 2 --ga-w 8
gives run_bad_self_extend 2 'ga_n is 3 and ga_w is 8' run "$text" -p Once --ga-n 3 --ga-w 8
# A session in two runs says what one run says; another model's is refused.
once() { "$pith" run "$text" -c 256 --temp 0 --ignore-eog "$@" </dev/null; }
whole=$(once -p 'Once upon a time' -n 40)
parts="$(once -p 'Once upon a time' -n 15 --session "$dir/s")$(once -n 25 --session "$dir/s")"
same run_session "$parts" "$whole"
same run_session_prefix "$(once -p 'Once upon a time' -n 40 --session "$dir/s")" "$whole"
# So it does at any temperature, with penalties, samplers that learn and a grammar: seed, draws,
# history and position are in the file.
drawn() { once "$@" --temp 1 --repeat-penalty 1.3 --repeat-last-n -1 --dry-multiplier 0.8; }
sessions() # NAME SPLITS FLAG...
{
    local name=$1 n=$2 i split wrong= whole parts
    local -A texts=()
    shift 2
    for ((i = 1; i <= n; i++)); do
        split=$((RANDOM % 21))
        rm -f "$dir/split"
        whole=$(drawn -p 'Once upon a time' -n 20 --seed $i "$@")
        parts=$(drawn -p 'Once upon a time' -n $split --seed $i --session "$dir/split" "$@"
            drawn -n $((20 - split)) --session "$dir/split" "$@")
        [ "$parts" = "$whole" ] || wrong="$wrong seed $i at $split: '$parts', not '$whole';"
        texts[$whole]=1
    done
    [ ${#texts[@]} -gt $((n / 2)) ] || wrong="$wrong $n seeds draw ${#texts[@]} texts"
    same "$name" "$wrong" ""
}
RANDOM=${TEST_SEED:-1}
sessions run_session_drawn $n_drawn
sessions run_session_mirostat $n_other --mirostat 2 --mirostat-ent 3
echo 'root ::= [a-z ] [a-z ] [a-z ] ([0-9] [a-z ]+)*' >"$dir/letters.gbnf"
gives grammar_as_text 0 '^(left|right)$' run "$text" -p x -n 20 --grammar \
    'root ::= "left" | "right"'
gives schema_as_text 0 '^22' run "$text" -p x -n 20 --schema '{"enum": [22]}'
gives schema_annotates 0 '^pith: --schema: left out: format color' run "$text" -p x \
    -n 20 --schema '{"enum": [22], "format": "color"}'
gives grammar_as_text_bad 2 '^pith: grammar, line 1' run "$text" -p x --grammar 'root ::= ('
gives schema_as_text_bad 2 '^pith: schema #/enum' run "$text" -p x --schema '{"enum": 3}'
gives schema_as_text_no_file 2 'cannot open' run "$text" -p x --schema '[]'
sessions run_session_grammar 5 --grammar "$dir/letters.gbnf"
rm -f "$dir/split"
drawn -p 'Once upon a time' -n 5 --session "$dir/split" --grammar "$dir/letters.gbnf" >"$out"
echo 'root ::= [0-9]*' >"$dir/digits.gbnf"
cp "$dir/split" "$dir/split.was"
gives run_session_other_grammar 2 '^pith: --grammar .*digits.gbnf: .*does not fit its grammar' \
    run "$text" -n 5 --session "$dir/split" --grammar "$dir/digits.gbnf"
same run_session_other_grammar_left "$(cmp "$dir/split" "$dir/split.was" 2>&1)" ""
# Settings and grammar given in the first run alone hold in the second one.
plain_session() # NAME FLAG...
{
    local name=$1 split=$dir/$1.session whole parts
    shift
    whole=$("$pith" run "$text" -p 'Once upon a time' -n 20 --ignore-eog --seed 5 "$@" 2>&1)
    parts=$("$pith" run "$text" -p 'Once upon a time' -n 10 --ignore-eog --seed 5 "$@" \
        --session "$split" 2>&1
        "$pith" run "$text" -n 6 --ignore-eog --session "$split" </dev/null 2>&1
        "$pith" run "$text" -n 4 --ignore-eog --session "$split" </dev/null 2>&1)
    same "$name" "$parts" "$whole"
}
hot="--temp 1.5 --top-k 0 --top-p 1 --min-p 0"
plain_session run_session_keeps_flags $hot
plain_session run_session_keeps_window $hot --repeat-last-n 0 --repeat-penalty 1.5
plain_session run_session_keeps_lists $hot --logit-bias 300=4 --logit-bias 301=-inf \
    --dry-multiplier 3 --dry-sequence-breaker a --dry-penalty-last-n 9
plain_session run_session_keeps_chain --samplers 'top_k:k=300;temp:t=3'
plain_session run_session_keeps_mirostat --mirostat 2 --mirostat-ent 3 --mirostat-lr 0.3
echo 'root ::= "Q" [0-9]{5} ("xz"){30}' >"$dir/xz.gbnf"
cp "$dir/xz.gbnf" "$dir/gone.gbnf"
plain_session run_session_keeps_grammar --temp 1 --grammar "$dir/gone.gbnf"
rm "$dir/gone.gbnf"
gives run_session_keeps_grammar_text 0 . run "$text" -n 5 --ignore-eog --session \
    "$dir/run_session_keeps_grammar.session"
same run_session_keeps_grammar_alone "$(tr -d 'xz' <"$out")" ""
echo '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}},
    "required": ["b", "a"]}' >"$dir/kept.json"
plain_session run_session_keeps_schema $hot --schema "$dir/kept.json" --schema-order
plain_session run_session_keeps_json $hot --json
plain_session run_session_keeps_trigger --temp 1 --grammar "$dir/xz.gbnf" --trigger e
# What is given anew wins, and is said where it differs.
flags=$dir/run_session_keeps_flags.session
cp "$flags" "$dir/anew"
gives run_session_new_flag 0 '^pith: --session .*: --temp is 0.25 from here on, and was 1.5$' \
    run "$text" -n 2 --temp 0.25 --top-k 0 --session "$dir/anew"
same run_session_new_flag_alone "$(grep -c 'from here on' "$err")" 1
printf '[run]\ntemp = 0.5\n' >"$dir/hot.conf"
cp "$flags" "$dir/anew2"
gives run_session_new_from_config 0 '\-\-temp is 0.5 from here on, and was 1.5' run "$text" -n 2 \
    --session "$dir/anew2" --config "$dir/hot.conf"
gives run_session_new_flag_kept 0 '\-\-temp is 2 from here on, and was 0.25' run "$text" -n 2 \
    --temp 2 --session "$dir/anew"
gives run_session_new_seed 0 '\-\-seed is 6 from here on, and was 5' run "$text" -n 9 --seed 6 \
    --session "$dir/anew"
cp "$flags" "$dir/anew" && cp "$flags" "$dir/anew2"
same run_session_new_seed_wins "$("$pith" run "$text" -n 9 --ignore-eog --seed 6 --session \
    "$dir/anew" 2>/dev/null </dev/null | cmp -s - <("$pith" run "$text" -n 9 --ignore-eog \
    --session "$dir/anew2" </dev/null) && echo as before)" ""
cp "$flags" "$dir/anew"
gives run_session_new_chain 0 '\-\-samplers is another from here on' run "$text" -n 2 \
    --samplers greedy --session "$dir/anew"
# A session keeps mirostat always; a chain of this run's own is what was asked for.
started() { "$pith" run "$text" -p 'Once upon a time' -n 4 --ignore-eog --seed 5 --session "$@"; }
ended() { "$pith" run "$text" -n 16 --ignore-eog --session "$@" </dev/null; }
started "$dir/plain" >"$out"
started "$dir/surprised" --override-kv general.sampling.mirostat=int:2 >"$out"
started "$dir/both" --mirostat 2 --samplers 'temp:t=9' >"$out" 2>&1
started "$dir/alone" --mirostat 2 >"$out"
# The text so far is the same in both, and so is the chain from here on.
started "$dir/asked" --mirostat 2 >"$out"
gives run_session_new_chain_for_mirostat 0 '\-\-mirostat is 0 from here on, and was 2' run "$text" \
    -n 16 --ignore-eog --session "$dir/surprised" --samplers greedy \
    --override-kv general.sampling.mirostat=int:2
same run_session_new_chain_is_drawn_with "$(grep -c 'takes the place' "$err") $(cat "$out")" \
    "0 $(ended "$dir/asked" --samplers greedy --mirostat 0 2>/dev/null)"
same run_session_keeps_mirostat_for_chain "$(ended "$dir/both" 2>&1)" "$(ended "$dir/alone" 2>&1)"
cp "$dir/run_session_keeps_grammar.session" "$dir/anew"
echo 'root ::= "Q" [0-9]{5} ("xz"){30} "."' >"$dir/dot.gbnf"
gives run_session_new_grammar 0 '\-\-grammar is another from here on' run "$text" -n 2 \
    --grammar "$dir/dot.gbnf" --session "$dir/anew"
gives run_session_same_grammar 0 . run "$text" -n 2 --grammar "$dir/dot.gbnf" --session "$dir/anew"
same run_session_same_grammar_silent "$(cat "$err")" ""
# What it keeps is checked like the rest of it.
size=$(stat -c %s "$flags")
{ head -c $((size - 30)) "$flags" && printf '#' && tail -c 29 "$flags"; } >"$dir/anew"
gives run_session_damaged_note 2 'section "note": its checksum differs' run "$text" -n 2 \
    --session "$dir/anew"
head -c $((size - 1)) "$flags" >"$dir/anew"
gives run_session_cut_note 2 'section "note": it is not whole' run "$text" -n 2 --session \
    "$dir/anew"
"$pith" synth "$dir/other.gguf" --vocab 400 --seed 5
gives run_session_of_another 2 'saved with another model' run "$dir/other.gguf" -p a -n 1 \
    --session "$dir/s"
printf broken >"$dir/s"
gives run_session_damaged 2 'is no saved session' run "$text" -p Once -n 1 --session "$dir/s"

# Prompts of earlier runs from a folder.
long=$(printf 'Once upon a time %.0s' $(seq 20))
whole=$(once -p "$long" -n 8)
same run_store "$(once -p "$long" -n 8 --store-dir "$dir/store")" "$whole"
gives run_store_again 0 'prefix store in .*: [0-9]* pages written, [1-9][0-9]* read' run "$text" \
    -p "$long" -n 8 -v --store-dir "$dir/store"
same run_store_text "$(once -p "$long" -n 8 --store-dir "$dir/store")" "$whole"
"$pith" synth "$dir/short.gguf" --vocab 300 --ctx 64
gives run_ctx_over_trained 0 'ctx is 128, and the model was trained for 64 tokens' run \
    "$dir/short.gguf" -p a -n 1 --ctx 128
gives run_ctx_as_trained 0 '' run "$dir/short.gguf" -p a -n 1 --ctx 64
same run_ctx_as_trained_says_nothing "$(grep -c trained "$err")" 0
gives run_store_cannot 2 'absent/x: cannot make it' run "$text" -p Once -n 1 --store-dir \
    "$dir/absent/x"
same run_session_left "$(cat "$dir/s")" broken
gives run_missing_prompt_file 2 'No such file' run "$text" -f "$dir/absent"
gives run_prompt_folder 2 'directory' run "$text" -f "$dir"
"$pith" run "$text" -p Once -n 8 >/dev/full 2>"$err"
same run_full_stdout "$? $(grep -c 'No space left' "$err")" "3 1"
"$pith" run "$text" -p Once -n -2 --ignore-eog 2>"$err" | head -c 4 >"$out"
same run_reader_leaves "${PIPESTATUS[0]} $(cat "$err")" "0 "
"$pith" run "$text" -p Once -n 4 <&- >"$out" 2>"$err"
same run_closed_stdin "$? $(wc -c <"$out" | awk '{print ($1 > 0)}')" "0 1"

if [ "$(df --output=pcent "$dir" | tr -dc 0-9)" -ge 90 ]; then
    skip cache_dir "less than a tenth of the file system of $dir is free"
else
    copies() { find "$1" -name '*.packed' 2>/dev/null | wc -l; }
    gives cache_dir 0 '' run "$text" -p 'Once upon a time' -n 8 --temp 0 --cache-dir "$dir/kept"
    same cache_dir_text "$(cat "$out" "$err")" "$first"
    same cache_dir_is_made "$(copies "$dir/kept")" 1
    gives cache_dir_used 0 "packed weights mapped from $dir/kept/" run "$text" -p \
        'Once upon a time' -n 8 --temp 0 -v --cache-dir "$dir/kept"
    same cache_dir_used_text "$(cat "$out")" "$first"
    printf x >>"$(find "$dir/kept" -name '*.packed')"
    gives cache_dir_damaged 0 'another length; packed anew' run "$text" -p 'Once upon a time' -n 8 \
        --cache-dir "$dir/kept"
    gives cache_dir_cannot 2 '--cache-dir .*absent/x: cannot make it' run "$text" -p Once -n 1 \
        --cache-dir "$dir/absent/x"
    gives no_cache_dir 0 '' run "$text" -p Once -n 1 --no-cache-dir
    PITH_CACHE=$dir/own gives cache_folder_absent 0 '' run "$text" -p Once -n 1
    same cache_folder_is_not_made "$([ -e "$dir/own" ] && echo made)" ""
    mkdir -p "$dir/own/packed"
    PITH_CACHE=$dir/own gives cache_folder 0 '' run "$text" -p Once -n 1
    same cache_folder_used "$(copies "$dir/own/packed")" 1
fi

# Ctrl-C: a model large enough that the text is still being made. Held still while the text is
# measured, so that what comes after the signal is known: the token that was being made, not the
# clock, is what it may take.
"$pith" synth "$dir/slow.gguf" --layers 8 --embd 512 --heads 8 --ff 2048 --vocab 2000 --ctx 4096
# Shells start background jobs with SIGINT ignored; the program's own handler replaces that.
# What the file had before is no text of this run, and a shell that has not become the program yet
# would end at the signal, and take the folder with it.
rm -f "$out"
"$pith" run "$dir/slow.gguf" -p a -n -2 --ignore-eog -c 4096 >"$out" 2>"$err" &
pid=$!
comes test -s "$out"
kill -STOP $pid
comes grep -q '^State:.T' /proc/$pid/status
before=$(stat -c %s "$out")
kill -INT $pid
kill -CONT $pid
wait $pid
code=$?
same interrupt_status "$code $([ -s "$out" ] && echo text)" "130 text"
same interrupt_is_prompt "$(($(stat -c %s "$out") - before <= 40))" 1

# ---------------------------------------------------------------- template

printf '%s' '{% if not messages %}{{ raise_exception("no messages") }}{% endif %}' \
    '{{ messages[0].content }} {{ strftime_now("%d %b %Y") }}' >"$dir/t.jinja"
vars='{"messages": [{"role": "user", "content": "h\u00e9"}], "now": "2026-11-21T10:11:12"}'
same template_file "$("$pith" template "$dir/t.jinja" <<<"$vars")" "hé 21 Nov 2026"
gives template_raises 2 '^no messages$' template "$dir/t.jinja" <<<'{}'
gives template_no_json 1 'no JSON object' template "$dir/t.jinja" <<<'['
gives template_no_object 1 'wanted an object' template "$dir/t.jinja" <<<'[]'
gives template_absent 1 'cannot open' template "$dir/absent.jinja" <<<'{}'
printf '%s' '{{ 1 +' >"$dir/bad.jinja"
gives template_syntax 1 'line 1' template "$dir/bad.jinja" <<<'{}'
gives template_name_of_a_file 1 'no GGUF file' template "$dir/t.jinja" --name x <<<'{}'
echo '<tool_call> <think>' >"$dir/h.jinja"
same template_parse "$("$pith" template --parse "$dir/h.jinja" \
    <<<'<think>a</think>b<tool_call>{"name":"f","arguments":{"n":1}}</tool_call>' |
    sed 's/,"id":"[0-9a-z]*"//')" \
    '{"content":"b","reasoning":"a",'\
'"tool_calls":[{"name":"f","arguments":{"n":1}}],"family":"hermes"}'
echo '{}' >"$dir/tools.json"
gives template_parse_tools 1 'wanted an array' template --parse "$dir/h.jinja" --tools \
    "$dir/tools.json" <<<'a'
gives template_tools_alone 1 'belong to --parse' template "$dir/h.jinja" --tools "$dir/tools.json" \
    <<<'{}'

finish
