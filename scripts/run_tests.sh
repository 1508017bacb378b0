#!/usr/bin/env bash
# run_tests.sh [NAME...] -- runs the tests and closes with one line: "N passed, N failed, N
# skipped". Behind each test stand the seconds that it took and those of processors, which a busy
# machine does not change; the sum of these comes before the closing line.
#
# A test is a program $B/tests/test_*, a script tests/ROOM/test_*.sh or tests/ROOM/test_*.py, or a
# rule of the house scripts/check_*.sh. Each prints "ok NAME", "FAIL NAME: why" and "skip NAME: why"
# lines and the same closing line; the lines are added up, skips and failures are repeated at the
# end. One that crashes, prints no closing line or exceeds its time counts as one failure by name.
# With NAMEs only those run (test_base, check_layers).
#
# Those that took longest when they last ran come first, so that no processor waits for the last
# one: $B/test-seconds has what each took, for each TEST_SCALE.
#
# B            build folder, default build
# TEST_SCALE   multiplier of the work: 1 (default), 10, 100
# TEST_QUICK   1: what says "In make test alone: WHY." in its head is left out
# TEST_LIMIT   seconds one test may take, default 60
# TEST_MODEL   1: fetch all that tests need (programs, models, packages of Python); tests are
#              skipped by name when they cannot be had
# CI           set: a skipped test is a failure, unless its reason begins with "hardware:"
# TEST_RULES   0: leave the rules of the house out (sanitizer builds)
# TEST_WRAP    command before each program (an emulator); scripts are left out too
# TEST_JOBS    tests at once, default the number of cores
# V            1: show everything each test prints
set -u
cd "$(dirname "$0")/.." || exit 1

export B=${B:-build} TEST_SCALE=${TEST_SCALE:-1}
limit=${TEST_LIMIT:-60}
logs=$B/test-logs
times=$B/test-times # seconds of processors, a file for each test
took=$B/test-seconds/$TEST_SCALE # lines of a name and the seconds by the clock
closing='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'

# run_one PATH: runs it, leaves its output in $logs/NAME and says how it went. A bad end is written
# into the log as a failure.
run_one()
{
    local path=$1 name=${1##*/} log rc line used user system clock began=${EPOCHREALTIME/./} why=
    local TIMEFORMAT='%3U %3S'
    local -a cmd lines=('0.0 0.0')
    log=$logs/$name
    if [[ $path == *.py ]] && ! command -v "$TEST_PYTHON" >/dev/null; then
        printf 'skip %s: there is no %s\n0 passed, 0 failed, 1 skipped\n' "$name" "$TEST_PYTHON" \
            >"$log"
        printf '%-24s %s\n' "$name" "0 passed, 0 failed, 1 skipped"
        return
    fi
    case $path in
    *.sh) cmd=("$path") ;;
    *.py) cmd=("$TEST_PYTHON" "$path") ;;
    *) cmd=(${TEST_WRAP:-} "$path") ;;
    esac
    # apart from bash's own word about a signal
    { time timeout -k 5 "$limit" "${cmd[@]}" >"$log" 2>&1 </dev/null; } 2>"$times/$name"
    rc=$?
    clock=$(((${EPOCHREALTIME/./} - began) / 100000)) # tenths
    mapfile -t -O 1 lines <"$times/$name"
    read -r user system <<<"${lines[-1]}"
    used=$(((10#${user/./} + 10#${system/./} + 50) / 100))
    echo "$((used / 10)).$((used % 10))" >"$times/$name.sum"
    echo "$name $((clock / 10)).$((clock % 10))" >"$times/$name.clock"
    line=$(tail -n 1 "$log")
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        why="stopped after $limit s"
    elif [ $rc -gt 128 ]; then
        why="killed by signal $((rc - 128))"
    elif ! [[ $line =~ $closing ]]; then
        why="ended with status $rc and no closing line"
    elif [ $rc -ne 0 ] && [[ $line == *' 0 failed'* ]]; then
        why="ended with status $rc though nothing failed"
    fi
    if [ -n "$why" ]; then
        [ "$(grep -c '^FAIL ' "$log")" -gt 0 ] || tail -n 20 "$log" | sed 's/^/    /'
        # What it had counted before its bad end still counts.
        if ! [[ $line =~ $closing ]]; then
            line="$(grep -c '^ok ' "$log") passed, $(grep -c '^FAIL ' "$log") failed, $(grep -c \
                '^skip ' "$log") skipped"
        fi
        line=$(awk '{print $1 " passed, " $3 + 1 " failed, " $5 " skipped"}' <<<"$line")
        printf '\nFAIL %s: %s\n%s\n' "$name" "$why" "$line" >>"$log"
    fi
    [ -z "${V:-}" ] || sed "s/^/  $name: /" "$log"
    printf '%-24s %s  (%d.%d s, %d.%d s of processors)\n' "$name" "$line" \
        $((clock / 10)) $((clock % 10)) $((used / 10)) $((used % 10))
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

shopt -s nullglob
all=()
for src in tests/test_*.c tests/*/test_*.c; do
    path=$B/tests/$(basename "$src" .c)
    [ -x "$path" ] && all+=("$path")
done
[ -n "${TEST_WRAP:-}" ] || all+=(tests/*/test_*.sh tests/*/test_*.py tests/test_*.sh \
    tests/test_*.py)
[ "${TEST_RULES:-1}" = 0 ] || all+=(scripts/check_*.sh)
if [ $# -gt 0 ]; then
    chosen=()
    for path in "${all[@]}"; do
        for name in "$@"; do
            case $(basename "$path") in "$name" | "$name".sh | "$name".py) chosen+=("$path") ;; esac
        done
    done
    all=("${chosen[@]}")
fi

# The quick loop leaves out what says so in its head.
if [ "${TEST_QUICK:-0}" = 1 ]; then
    declare -A later=()
    while read -r path; do
        path=${path##*/}
        later[${path%.c}]=1
    done < <(grep -lE '^(# |/\* )In make test alone: ' tests/*/test_*)
    for i in "${!all[@]}"; do
        [ -z "${later[${all[i]##*/}]:-}" ] || unset "all[i]"
    done
    echo "${#later[@]} programs are left to make test"
fi

# Of those that have not run yet these come first.
long='test_vulkan test_serve.py test_account.py test_cuda test_cann test_cli.sh test_bind test_far
    test_limits.py test_bits test_pipeline test_doors.py test_web.py test_hostile.py test_pull.py'
declare -A last=()
n=1000
for name in $long; do last[$name]=$((n--)); done
[ ! -e "$took" ] || while read -r name seconds; do last[$name]=$seconds; done <"$took"
[ ${#all[@]} -eq 0 ] || mapfile -t all < <(
    for path in "${all[@]}"; do echo "${last[${path##*/}]:-0} $path"; done |
        sort -rns | cut -d ' ' -f 2
)

rm -rf "$logs" "$times"
mkdir -p "$logs" "$times"
if [ "${TEST_MODEL:-0}" = 1 ]; then
    scripts/deps.sh test ||
        echo "programs of tests could not be had: tests that need them will be skipped"
    # A locale with a comma in its numbers, for the tests alone.
    locales=$(realpath "$B")/locale
    [ -d "$locales/de_DE.UTF-8" ] || { mkdir -p "$locales" &&
        localedef -i de_DE -f UTF-8 "$locales/de_DE.UTF-8"; }
    export TEST_LOCALES=$locales
    if instruct=$(scripts/instruct.sh); then
        export TEST_INSTRUCT=$instruct
    else
        echo "the instruct model could not be had: tests that need it will be skipped"
    fi
    if model=$(scripts/model.sh); then
        export TEST_GGUF=$model
    else
        echo "the default model could not be had: tests that need it will be skipped"
    fi
    scripts/packages.sh ||
        echo "packages of Python could not be had: tests that need them will be skipped"
fi
TEST_PYTHON=$(scripts/model.sh --python) || TEST_PYTHON=python3
export TEST_PYTHON
# report.py and serving.py, which tests in Python import
export PYTHONPATH=$PWD/tests${PYTHONPATH:+:$PYTHONPATH}
export PITH_SHARED=${PITH_SHARED:-../shared}
export PITH_CONFIG=/dev/null # nobody's own settings

if [ ${#all[@]} -gt 0 ]; then
    printf '%s\0' "${all[@]}" | xargs -0 -n 1 -P "${TEST_JOBS:-$(nproc)}" "$0" --one
fi

# Where everything can be installed, only a missing device excuses a test.
if [ -n "${CI:-}" ]; then
    for log in "$logs"/*; do
        n=$(grep '^skip ' "$log" | grep -cv '^skip [^:]*: hardware:')
        [ "$n" -gt 0 ] || continue
        line=$(grep -E "$closing" "$log" | tail -n 1)
        sed -i '/^skip [^:]*: hardware:/!s/^skip \([^:]*\): /FAIL \1: skipped: /' "$log"
        awk -v n="$n" '{print $1 " passed, " $3 + n " failed, " $5 - n " skipped"}' <<<"$line" \
            >>"$log"
    done
fi

for kind in skip FAIL; do
    for log in "$logs"/*; do
        sed -n "s/^$kind /$kind $(basename "$log"): /p" "$log"
    done
done
# What did not run keeps what it took before.
mkdir -p "${took%/*}"
cat "$took" "$times"/*.clock 2>/dev/null |
    awk '{took[$1] = $2} END {for (name in took) print name, took[name]}' >"$took.new" &&
    mv "$took.new" "$took"
cat "$times"/*.sum /dev/null | awk '{n += $1} END {printf "%.0f s of processors in all\n", n}'
for log in "$logs"/*; do
    grep -E "$closing" "$log" | tail -n 1
done | awk '{p += $1; f += $3; s += $5}
    END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0}'
