# report.sh -- how tests that are shell scripts count and close; sourced. What tests/test.h is to the programs.
passed=0 failed=0 skipped=0
ok() { echo "ok $1"; passed=$((passed + 1)); }
fail() { echo "FAIL $1: $2"; failed=$((failed + 1)); }
skip() { echo "skip $1: $2"; skipped=$((skipped + 1)); }
finish()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}
