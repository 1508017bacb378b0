#!/usr/bin/env bash
# test_chat.sh -- pith run as a chat program, driven in tmux: what is typed and pasted, what the
# screen shows, what files hold. The model is random (`pith synth`), its template comes by
# --override-kv, and a grammar makes it say what a check needs. Every wait polls the screen and is
# bounded; none passes by time alone.
. "$(dirname "$0")"/../report.sh
[ "${TEST_MODEL:-0}" != 1 ] || scripts/deps.sh chat >/dev/null 2>&1
needs chat "$pith" tmux
unset NO_COLOR TMUX
export LC_ALL=C.UTF-8 TMUX_TMPDIR=$dir
tm() { tmux -u -L chat -f /dev/null "$@"; }
trap 'tm kill-server 2>/dev/null; rm -rf "$dir"' EXIT
tm new-session -d -s keep "sleep 1000" # so that the server outlives its chats

# ---------------------------------------------------------------- driving

# start ARGUMENT...: a new terminal (W x H, TERM) with a chat in it, whose status is shown when it
# ends. NAME=VALUE may come first.
start()
{
    tm kill-session -t chat 2>/dev/null
    printf 'cd %q\n' "$dir" >"$dir/start"
    printf 'env TERM=%q' "${TERM_IS:-screen-256color}" >>"$dir/start"
    printf ' %q' "$@" >>"$dir/start"
    printf '\necho "status $?"\nsleep 100\n' >>"$dir/start"
    tm new-session -d -s chat -x 100 -y 40 "exec bash $dir/start"
}
screen() { tm capture-pane -p -J -t chat 2>/dev/null | sed 's, *$,,'; }
type() { tm send-keys -t chat -l -- "$1"; }
key() { tm send-keys -t chat "$@"; }
# sees NAME PATTERN: the screen comes to show it (extended expression).
sees()
{
    local i
    for ((i = 0; i < ${CHAT_POLLS:-300}; i++)); do
        if screen | grep -qE -e "$2"; then
            ok "$1"
            return 0
        fi
        sleep 0.05
    done
    fail "$1" "wanted \"$2\" on the screen, found \"$(screen | grep -v '^$' | tail -n 8 |
        tr '\n' '|')\""
    return 1
}
sees_not() { if screen | grep -qE -e "$2"; then fail "$1" "\"$2\" is on the screen"; else ok \
    "$1"; fi; }
# says NAME LINE PATTERN: types a line and sees. The screen is wiped first, so that nothing old is
# taken for new.
says()
{
    key C-l
    type "$2"
    key Enter
    sees "$1" "$3"
}
# holds NAME FILE FILTER: the JSON file satisfies a Python expression over `m`, its messages.
holds()
{
    if python3 -c \
        "import json, sys; m = json.load(open(sys.argv[1]))['messages']; sys.exit(0 if $3 else 1)" \
        "$2" 2>/dev/null; then
        ok "$1"
    else
        fail "$1" "not so: $3, in $(head -c 400 "$2" | tr '\n' ' ')"
    fi
}
chat() { start "$pith" run "$dir/tiny.gguf" -t 1 --override-kv "tokenizer.chat_template=str:$form" \
    --logit-bias 2=-inf "$@"; }

form='{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}'
form+='{% if add_generation_prompt %}[assistant]{% endif %}'
"$pith" synth "$dir/tiny.gguf" --ctx 4096 || { fail chat "synth"; finish; }
"$pith" synth "$dir/slow.gguf" --ctx 65536 --layers 4 --embd 512 || { fail chat "synth"; finish; }

# ---------------------------------------------------------------- a conversation

chat -c 2048 -n 8
sees begins '^0/2048>'
says answers 'Grüße, 世界' 'ended after 8 tokens'
sees meter_moves '^[1-9][0-9]*/2048>'
says second_turn_reuses_the_cache 'and more' 'ended after 8 tokens'
says stats '/stats' '[1-9][0-9]* of its [0-9]+ prompt tokens were cached'
sees stats_counts_messages ' 4 messages'
says saves '/save talk.json' 'saved 4 messages in talk.json'
holds saved_as_typed "$dir/talk.json" \
    "m[0] == {'role': 'user', 'content': 'Grüße, 世界'} and len(m) == 4 and
    m[3]['role'] == 'assistant'"
says regenerates '/regen' 'ended after 8 tokens'
says saves_over_its_own '/save --state talk.json' "state beside it"
says system_absent '/system' 'there is no system text'
says system_set '/system Be brief.' 'new system text'
says system_shown '/system' '^Be brief\.$'
says clears '/clear' 'a new conversation, with the same system text'
says loads '/load talk.json' 'loaded 4 messages'
says loaded_goes_on 'on we go' 'ended after 8 tokens'
says saves_the_longer '/save longer.json' 'saved 6 messages'
holds loaded_and_longer "$dir/longer.json" \
    "m[2]['content'] == 'and more' and m[4]['content'] == 'on we go'"
echo precious >"$dir/other.txt"
says foreign_file_stays '/save other.txt' 'holds no conversation'
if [ "$(cat "$dir/other.txt")" = precious ]; then ok foreign_file_untouched; else
    fail foreign_file_untouched changed; fi
says foreign_file_not_loaded '/load other.txt' 'wanted a conversation'
printf '[{"role": "user"}]' >"$dir/bad.json"
says bad_message_named '/load bad.json' 'message 1: wanted'
says missing_file '/load none.json' 'none\.json: '
printf broken >"$dir/talk.json.state"
says bad_state_told '/load talk.json' 'read again'
says unknown_command '/sav x' 'did you mean /save'
says help '/help' '/regen +make the last answer again'
says slash_is_sent '//etc is a folder' 'ended after 8 tokens'

# Text of several lines: fenced, and pasted.
says block_opens '"""' '^\.\.\.$'
type 'first line' && key Enter && type '/clear' && key Enter && key C-l && type 'last """' &&
    key Enter
sees block_is_sent 'ended after 8 tokens'
says saves_block '/save block.json' 'saved 8 messages'
holds block_is_one_message "$dir/block.json" \
    "m[4]['content'] == '/etc is a folder' and m[6]['content'] == 'first line\n/clear\nlast '"
key C-l
tm set-buffer $'pasted äöü\n  世界 two\n\nend' && tm paste-buffer -p -t chat
if type '/help' && sees paste_is_shown '  世界 two' && grep -q 'libedit\.so' "$pith"; then
    sees_not paste_waits_for_enter 'ended after'
    key BSpace BSpace BSpace BSpace BSpace Enter
    sees paste_is_sent 'ended after 8 tokens'
    says saves_paste '/save paste.json' 'saved 10 messages'
    holds paste_is_one_message "$dir/paste.json" "m[8]['content'] == 'pasted äöü\n  世界 two\n\nend'"

    # Keys of the editor.
    key C-l Up Up
    sees history_recalls '> pasted äöü$'
    key C-u
    type 'wxyz' && key Left Left BSpace BSpace && type 'ab' && key C-a && type '世' && key C-e &&
        type '!'
    sees edits_in_the_line '> 世abyz!$'
    tm resize-window -t chat -x 60 -y 20
    type 'longer' # on the line that was begun
    sees line_survives_resize '> 世abyz!longer$'
    key C-u
else
    skip line_editing "the program was built without libedit"
fi
key C-d
sees ctrl_d_leaves '^status 0'

# ---------------------------------------------------------------- Ctrl-C

start "$pith" run "$dir/slow.gguf" -t 1 --override-kv "tokenizer.chat_template=str:$form" \
    --logit-bias 2=-inf -c 65536
sees slow_begins '^0/65536>'
type 'go on for ever' && key Enter
sees answer_streams 'w[0-9]+ w[0-9]+'
key C-c
sees ctrl_c_stops_the_answer '^\(stopped\)'
sees stopped_text_counts '^[1-9][0-9]*/65536>'
says session_lives '/stats' 'ended by (Ctrl-C|the output)'
type 'half a line' && key C-c
sees first_ctrl_c_at_the_prompt 'Ctrl-C once more'
says typing_counts_anew '/stats' '2 messages'
key C-c
sees first_again 'Ctrl-C once more'
key C-c
sees second_leaves '^status 130'

# ---------------------------------------------------------------- the context

long='one two three four five six seven eight nine ten eleven twelve'
chat -c 64 -n 8
sees small_begins '^0/64>'
says over_context_is_told "$long $long" \
    'outgrown the context: n_prompt = [0-9]+, n_ctx = 64, n_over = [0-9]+'
sees over_context_offers 'clear begins a new conversation'
says over_context_changes_nothing '/stats' ' 0 messages'
chat -c 128 -n 8 --context-shift
sees shift_begins '^0/128>'
says shift_first "$long" 'ended after'
says shift_second "$long" 'the model no longer sees the 2 oldest messages'
says shift_keeps_messages '/save shift.json' 'saved 4 messages'
chat -c 64 -n 200 --context-shift
sees answer_shift_begins '^0/64>'
says answer_outgrows 'hi' 'ended after 200 tokens'
sees answer_shift_shows_no_more_than_there_is '^([1-5]?[0-9]|6[0-4])/64>$'

# ---------------------------------------------------------------- what a model may write, colours,
# terminals

printf 'root ::= "<think>let me see</think>" "\\n\\n" "世界 \\x1b[31m red"\n' >"$dir/think.gbnf"
chat -c 512 --grammar "$dir/think.gbnf"
says reasoning_and_answer 'why' '^世界 \^\[\[31m red'
if tm capture-pane -p -e -t chat | grep -q $'\033\[2mlet me see'; then ok reasoning_is_dimmed; else
    fail reasoning_is_dimmed "$(tm capture-pane -p -e -t chat | grep -a see)"; fi
sees_not no_tags_with_colours '<think>'
says saves_reasoning '/save think.json' 'saved 2'
holds reasoning_is_apart "$dir/think.json" \
    "m[1]['reasoning_content'] == 'let me see' and m[1]['content'] == '世界 \x1b[31m red'"
says regenerates_with_a_grammar '/regen' '^世界'
says help_as_elsewhere '/?' '/regen +make the last answer again'
says exits_as_elsewhere '/bye' '^status 0'
# An answer that is made again is not penalised for what it was.
chat -c 4096 -n 12 --temp 0 --presence-penalty 100 --repeat-last-n -1
says asks_once 'say it' 'ended after 12 tokens'
says saves_it '/save once.json' 'saved 2'
says makes_it_again '/regen' 'ended after 12 tokens'
says saves_it_again '/save again.json' 'saved 2'
same the_same_again "$(<"$dir/again.json")" "$(<"$dir/once.json")"
says clears_it '/clear' 'a new conversation'
says asks_anew 'say it' 'ended after 12 tokens'
says saves_it_anew '/save anew.json' 'saved 2'
same the_same_anew "$(<"$dir/anew.json")" "$(<"$dir/once.json")"
says leaves_it '/bye' '^status 0'
chat -c 512
says exits '/exit' '^status 0'

start NO_COLOR=1 "$pith" run "$dir/tiny.gguf" -t 1 --override-kv \
    "tokenizer.chat_template=str:$form" -c 512 --grammar "$dir/think.gbnf"
says without_colours 'why' '^</think>'
sees_not nothing_dimmed_without_colours "$(printf '\033')"

TERM_IS=dumb chat -c 4096 -n 8
sees dumb_begins '^0/4096>'
type 'plain 世界' && key Enter
sees dumb_answers 'ended after 8 tokens'
type '"""' && key Enter && type 'two' && key Enter && type 'lines"""' && key Enter
sees dumb_block '(ended after 8 tokens.*)'
type '/save dumb.json' && key Enter
sees dumb_saves 'saved 4 messages'
holds dumb_messages "$dir/dumb.json" \
    "m[0]['content'] == 'plain 世界' and m[2]['content'] == 'two\nlines'"
for i in {1..10}; do type "$(printf 'x%.0s' {1..500})"; done
key Enter
sees dumb_line_too_long 'nothing is sent'
key C-c
sees dumb_first_ctrl_c 'once more'
key C-d
sees dumb_leaves '^status 0'

start "$pith" run "$dir/tiny.gguf"
sees no_template 'no chat template to talk by'
sees no_template_status '^status 1'
start "$pith" run "$dir/tiny.gguf" --override-kv 'tokenizer.chat_template=str:{% if %}'
sees bad_template_status '^status 2'
start "$pith" run "$dir/tiny.gguf" -p hello -n 2 --override-kv "tokenizer.chat_template=str:$form"
sees prompt_is_no_chat '^status 0'
start "$pith" run "$dir/tiny.gguf" -p hello --system x
sees system_without_chat '^status 1'
chat -n 0
sees no_answers_asked_for 'no prompt, and --predict 0 leaves no conversation to have'
sees no_answers_status '^status 1'
finish
