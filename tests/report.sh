# report.sh -- what tests that are shell scripts share; sourced before anything else. What
# tests/test.h is to the programs.
#
# The script goes on in the root of the sources, with a folder $dir that is removed when it ends,
# nobody's own settings, and no stdin.
#
#   ok NAME; fail NAME WHY; skip NAME WHY
#   skip_all NAME WHY                    nothing more can be tested; needs NAME PROGRAM...: without
#                                        one of these
#   same NAME FOUND WANTED
#   gives NAME STATUS PATTERN WORD...    $pith WORD... ends with STATUS and says PATTERN (extended;
#                                        "" for nothing in particular) in a line of $out (stdout) or
#                                        $err (stderr), or in all of them as one line. Its stdin is
#                                        the shell's.
#   comes COMMAND...                     waits until it succeeds, a minute at most
#   finish                               the closing line
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null
B=${B:-build}
pith=$(realpath -m "$B")/pith
shared=${PITH_SHARED:-../shared}
dir=$(mktemp -d) || exit 1
trap "rm -rf '$dir'" EXIT
out=$dir/out err=$dir/err
for v in $(compgen -e PITH_); do unset "$v"; done
export PITH_CONFIG=/dev/null PITH_CACHE=$dir/no-such-cache

passed=0 failed=0 skipped=0
ok() { echo "ok $1"; passed=$((passed + 1)); }
fail() { echo "FAIL $1: $2"; failed=$((failed + 1)); }
skip() { echo "skip $1: $2"; skipped=$((skipped + 1)); }
finish()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}
skip_all() { skip "$@"; finish; }
needs()
{
    local name=$1 program
    shift
    for program; do
        command -v "$program" >/dev/null 2>&1 || skip_all "$name" "there is no $program"
    done
}
same() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "found \"$2\", wanted \"$3\""; fi; }
gives()
{
    local name=$1 status=$2 pattern=$3 got said
    shift 3
    timeout 60 "$pith" "$@" >"$out" 2>"$err"
    got=$?
    if [ $got -ne "$status" ]; then
        fail "$name" "status $got, wanted $status: $(head -c 300 "$err" | tr '\n' ' ')"
        return
    fi
    if [ -z "$pattern" ] || grep -qE -e "$pattern" "$out" "$err"; then
        ok "$name"
        return
    fi
    said=$(cat "$out" "$err" | tr '\0\n' ' ' | tr -s ' ')
    if grep -qE -e "$pattern" <<<"$said"; then
        ok "$name"
    else
        fail "$name" "wanted \"$pattern\", found \"${said:0:400}\""
    fi
}
comes() { for _ in $(seq 1200); do "$@" && return; sleep 0.05; done; false; }
