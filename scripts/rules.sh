# rules.sh -- sourced by scripts/check_*.sh: each rule is one named test that fails when it finds
# something.
#
#   violations | rule NAME     "ok NAME", or "FAIL NAME: ..." for each line read (the first 20)
#   rules_end                  the closing line; its status is the script's
set -u
shopt -s lastpipe nullglob globstar
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
rules_passed=0 rules_failed=0 rules_skipped=0

rule()
{
    local found
    mapfile -t found
    if [ ${#found[@]} -eq 0 ]; then
        echo "ok $1"
        rules_passed=$((rules_passed + 1))
        return
    fi
    rules_failed=$((rules_failed + 1))
    printf "FAIL $1: %s\n" "${found[@]:0:20}"
    [ ${#found[@]} -le 20 ] || echo "FAIL $1: and $((${#found[@]} - 20)) more"
}

rule_skipped()
{
    echo "skip $1: $2"
    rules_skipped=$((rules_skipped + 1))
}

# code FILE...: "file:line: text" of each line with comments blanked and string literals emptied, so
# that words in them are not found.
code()
{
    awk '
        FNR == 1 { inside = 0 }
        {
            out = ""
            for (s = $0; s != "";) {
                if (inside) {
                    e = index(s, "*/")
                    if (!e) break
                    s = substr(s, e + 2); inside = 0
                } else if (match(s, /\/\*|\/\/|"([^"\\]|\\.)*"|\047([^\047\\]|\\.)+\047/)) {
                    t = substr(s, RSTART, 2)
                    out = out substr(s, 1, RSTART - 1)
                    s = substr(s, RSTART + RLENGTH)
                    if (t == "//") break
                    if (t == "/*") inside = 1
                    else out = out (substr(t, 1, 1) == "\"" ? "\"\"" : "0")
                } else { out = out s; break }
            }
            if (out ~ /[^ \t]/) print FILENAME ":" FNR ": " out
        }' "$@" /dev/null
}

# comments FILE...: the opposite: "file:line: text" of each comment, line by line.
comments()
{
    awk '
        FNR == 1 { inside = 0 }
        {
            out = ""
            for (s = $0; s != "";) {
                if (inside) {
                    e = index(s, "*/")
                    out = out " " (e ? substr(s, 1, e - 1) : s)
                    if (!e) break
                    s = substr(s, e + 2); inside = 0
                } else if (match(s, /\/\*|\/\/|"([^"\\]|\\.)*"/)) {
                    t = substr(s, RSTART, 2)
                    s = substr(s, RSTART + RLENGTH)
                    if (t == "//") { out = out " " s; break }
                    if (t == "/*") inside = 1
                } else break
            }
            if (out ~ /[^ \t]/) print FILENAME ":" FNR ": " out
        }' "$@" /dev/null
}

rules_end()
{
    echo "$rules_passed passed, $rules_failed failed, $rules_skipped skipped"
    [ "$rules_failed" -eq 0 ]
}
