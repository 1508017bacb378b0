#!/usr/bin/env bash
# In make test alone: it takes long at any scale.
# test_config.sh -- where settings come from: flag > environment > configuration file > default, for
# the rows of every command; damaged files; secrets; the manual page and the systemd unit, which are
# made from or belong to the same.
. "$(dirname "$0")"/../report.sh
needs config "$pith"
unset PITH_CONFIG
conf=$dir/conf
export HOME=$dir/home XDG_CONFIG_HOME=$dir/xdg
mkdir -p "$HOME" "$XDG_CONFIG_HOME"
m=$dir/m.gguf
"$pith" synth "$m" --vocab 300 || fail synth "no model"
[ -z "$("$pith" help | grep "^  serve ")" ] || server=1

# refuses NAME LINE PATTERN TEXT : a file with this text is refused, with this line's number.
refuses()
{
    printf "$4" >"$conf"
    gives "$1" 1 "$conf:$2: .*$3" run "$m" -p w5 -n 1 --config "$conf"
}
run() { gives "$1" "$2" "$3" run "$m" -p w5 "${@:4}"; }

# ---------------------------------------------------------------- precedence

mkdir -p "$dir/xdg/pith" "$dir/home/.config/pith"
echo 'ctx = -1' >"$dir/xdg/pith/pith.conf"
run file_of_xdg 1 "$dir/xdg/pith/pith.conf:1: ctx is \"-1\"; wanted a whole number"
echo 'ctx = -1' >"$dir/home/.config/pith/pith.conf"
XDG_CONFIG_HOME= run file_of_home 1 "$dir/home/.config/pith/pith.conf:1: ctx is \"-1\""
echo 'ctx = -2' >"$conf"
PITH_CONFIG=$conf run file_of_variable 1 "$conf:1: ctx is \"-2\""
echo 'ctx = -3' >"$dir/other"
PITH_CONFIG=$conf run file_of_flag 1 "$dir/other:1: ctx is \"-3\"" --config "$dir/other"
PITH_CONFIG=/dev/null run no_file 0 '' -n 1
rm -r "$dir/xdg/pith" "$dir/home/.config"

printf 'predict = 3\nignore-eog = yes\n[run]\nseed = 7\n' >"$conf"
export PITH_CONFIG=$conf
words() { timeout 60 "$pith" run "$m" -p w5 --temp 0 "$@" 2>/dev/null | cksum; }
bare() { PITH_CONFIG=/dev/null words "$@"; }
same file_over_default "$(words)" "$(bare --ignore-eog -n 3)"
same variable_over_file "$(PITH_PREDICT=5 words)" "$(bare --ignore-eog -n 5)"
same flag_over_variable "$(PITH_PREDICT=5 words -n 7)" "$(bare --ignore-eog -n 7)"
same switch_off_again "$(words --ignore-eog=no -n 9)" "$(bare -n 9)"
same switch_of_environment "$(PITH_IGNORE_EOG=off words -n 9)" "$(bare -n 9)"
printf 'predict = 3\nignore-eog = 1\n[run]\npredict = 4\n[bench]\npredict = 2\n' >"$conf"
same section_over_all "$(words)" "$(bare --ignore-eog -n 4)"
printf '# note\n\n  ; note\r\n[ run ]\r\n  predict =  5 \r\nignore-eog=TRUE\nprompt = " w6 "\n' \
    >"$conf"
same blanks_and_quotes "$(timeout 60 "$pith" run "$m" --temp 0 2>/dev/null </dev/null |
    cksum)" "$(PITH_CONFIG=/dev/null timeout 60 "$pith" run "$m" -p ' w6 ' -n 5 --temp 0 \
    --ignore-eog 2>/dev/null | cksum)"
printf '[run]\nmodel = %s\n' "$m" >"$conf"
same model_of_file "$(timeout 60 "$pith" run -p w5 -n 3 --temp 0 2>/dev/null |
    cksum)" "$(bare -n 3)"
same model_of_environment "$(PITH_MODEL=$m PITH_CONFIG=/dev/null timeout 60 "$pith" run -p w5 -n 3 \
    --temp 0 2>/dev/null | cksum)" "$(bare -n 3)"
printf '[run]\nlogit-bias = 5=1\nlogit-bias = 6=1e\n' >"$conf"
run every_line_of_a_list 1 '6=1e' -n 1
printf '[run]\nlogit-bias = 5=1\nlogit-bias = 6=1e\n' >"$conf"
run flag_replaces_a_list 0 '' -n 1 --logit-bias 5=1
unset PITH_CONFIG

# ---------------------------------------------------------------- what is refused

refuses unknown_key 2 'unknown key "prdict"; did you mean predict' 'threads = 1\nprdict = 3\n'
refuses key_of_another_command 2 'unknown key "prompt"' '[inspect]\nprompt = x\n'
refuses unknown_section 1 'no command "ruin"' '[ruin]\nn = 3\n'
refuses no_equals 3 'no "="' '\n\nthreads 4\n'
refuses open_section 1 'no "="' '[run\n'
refuses no_key 1 'unknown key ""' '= 3\n'
refuses bad_value 2 'threads is "many"' '\nthreads = many\n'
refuses bad_value_of_another_command 2 'repeat is "0"' '[bench]\nrepeat = 0\n'
refuses bad_choice 1 'priority is "x"; wanted one of low' 'priority = x\n'
refuses bad_switch 1 'strict is "maybe"; wanted yes or no' 'strict = maybe\n'
refuses empty_number 1 'threads is ""' 'threads =\n'
refuses twice 2 'second line for "threads"' 'threads = 1\nthreads = 2\n'
refuses binary 1 'unknown key|no "="' '\\001\\377\\n'
printf 'threads = 1\n\0' >"$conf"
gives zero_byte 1 'zero byte' run "$m" -p w5 --config "$conf"
gives absent_file 1 'absent: cannot open' run "$m" -p w5 --config "$dir/absent"
gives folder_as_file 1 'cannot read: Is a directory' run "$m" -p w5 --config "$dir"
gives config_without_value 1 '\-\-config has no value' run "$m" --config
PITH_MIN_P=2 run bad_variable 1 'PITH_MIN_P is "2"; wanted a number from 0 to 1'
PITH_STRICT=perhaps run bad_switch_variable 1 'PITH_STRICT is "perhaps"'
PITH_CTX=tcp://10.0.0.1:8080 run address_of_a_service_is_no_number 0 '' -n 1
PITH_CTX=http://10.0.0.1 run other_addresses_are_refused 1 'PITH_CTX is "http://10.0.0.1"'
PITH_STRICT='' run empty_variable_is_unset 0 '' -n 1

# ---------------------------------------------------------------- help

printf '[run]\nseed = 5\n' >"$conf"
PITH_CTX=64 gives help_names_the_variable 0 'set by PITH_CTX to 64' run --help --config "$conf"
gives help_names_the_line 0 "set by $conf:2: seed to 5" run --help --config "$conf"
printf 'nonsense\n' >"$conf"
gives help_in_spite_of_a_damaged_file 0 "no \"=\".*--seed|--seed.*no \"=\"" run --help --config \
    "$conf"
PITH_NO_SUCH_FLAG=1 run other_variables_are_others 0 '' -n 1
long=$(for c in $("$pith" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do "$pith" "$c" --help \
    2>/dev/null | grep -oE '^ +(-[a-z]+,)? ?--[a-z0-9-]+' | grep -o -- '--.*' | tr a-z- A-Z_ |
    sed 's/^__/PITH_/'; done | grep -xE 'PITH_(CPU|CACHE|CONFIG|CPU_DEVICES|TEST|SYSFS)' |
    grep -v -x PITH_CONFIG | sort -u)
same no_variable_has_two_meanings "$long" ""

if [ -n "${server:-}" ]; then
    PITH_PORT=tcp://10.0.0.1:8080 PITH_MODEL=$m gives port_of_kubernetes 1 'api-key' serve --host \
        0.0.0.0
    secret=very-secret-key
    printf '[serve]\napi-key = %s\nport = 0\n' $secret >"$conf"
    gives help_hides_keys 0 "set by $conf:2: api-key\]" serve --help --config "$conf"
    if grep -q $secret "$out" "$err"; then fail key_in_help "it is printed"; else ok key_in_help; fi
    printf '[serve]\napi-key %s\n' $secret >"$conf"
    gives damaged_line_with_a_key 1 "$conf:2" serve "$m" --config "$conf"
    if grep -q $secret "$out" "$err"; then fail key_in_message "it is printed"; else
        ok key_in_message; fi
    printf '[serve]\nhost = 0.0.0.0\nport = 0\n' >"$conf"
    gives open_door_of_file 1 'api-key' serve "$m" --config "$conf"
    printf '[serve]\nmax-body = 1\n' >"$conf"
    gives range_of_file 1 "$conf:2: max-body is \"1\"; wanted .* from 1024" serve "$m" --config \
        "$conf"
fi

# Many lines for a list of texts: each is read once.
awk 'BEGIN { for (i = 0; i < 200000; i++) print "logit-bias = " i "=1" }' >"$conf"
ulimit -S -t 60 # seconds of processors
gives many_lines 1 'logit-bias' run "$m" -p a -n 1 --config "$conf"
ulimit -S -t unlimited

# ---------------------------------------------------------------- manual page and unit

"$pith" man >"$dir/pith.1"
same man_has_every_command "$(grep -c '^\.SS pith ' "$dir/pith.1")" "$("$pith" help |
    grep -E '^  [a-z]+  +' | grep -cvE '^  (help|version|man) ')"
if command -v groff >/dev/null 2>&1; then
    same man_without_warnings "$(groff -ww -man -Tascii -P-cbou "$dir/pith.1" 2>&1 >"$dir/text" |
        head -n 3)" ""
    if grep -q -e '--cache-type-k *f32|f16' "$dir/text"; then ok man_shows_flags; else
        fail man_shows_flags "$(grep -m 1 cache-type "$dir/text")"; fi
else
    skip man_without_warnings "groff is not installed"
fi
if command -v systemd-analyze >/dev/null 2>&1; then
    sed "s|@PREFIX@/bin/pith|$pith|" scripts/pith.service >"$dir/pith.service"
    said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$dir/pith.service" 2>&1 |
        grep pith.service | head -n 3)
    same unit "$said" ""
    exposed=$(systemd-analyze security --offline=yes --no-pager "$dir/pith.service" 2>/dev/null |
        grep -oE 'level for pith.service: [0-9]+' | grep -oE '[0-9]+$')
    if [ -z "$exposed" ]; then skip unit_exposure "systemd-analyze cannot say"
    elif [ "$exposed" -le 2 ]; then ok unit_exposure; else fail unit_exposure "$exposed of 10"; fi
else
    skip unit "systemd-analyze is not installed"
fi
if [ -n "${server:-}" ] && command -v python3 >/dev/null 2>&1; then
    python3 - "$pith" "$m" "$dir/notify" >"$out" 2>&1 <<'PY'
import os, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[3])
s.settimeout(60)
p = subprocess.Popen([sys.argv[1], "serve", sys.argv[2], "--port", "0", "--shutdown-timeout", "3"],
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     env={**os.environ, "NOTIFY_SOCKET": sys.argv[3]})
print(s.recv(500))
p.terminate()
print(s.recv(500), p.wait())
PY
    if grep -q "READY=1" "$out" && grep -q "STOPPING=1.nEXTEND_TIMEOUT_USEC=13000000' 0" "$out"
    then ok notify; else fail notify "$(head -c 300 "$out" | tr '\n' ' ')"; fi
fi
finish
