#!/usr/bin/env bash
# test_far_runs.sh -- tests of the cache, the prefix store and its folder, snapshots and edits, once
# more with the models on far devices (backend/far), whose memory the host cannot touch: what they
# say of bits, files and pages holds there, too.
#
# From make test on; they have run on the CPU anyway.
. "$(dirname "$0")"/../report.sh
[ "${TEST_SCALE:-1}" -ge 10 ] || skip_all far_runs "only in make test and make soak"
all=$((TEST_SCALE >= 100))
export TEST_SCALE=1

# run NAME DEVICES LAYERS [ONLY]: test_NAME, its models' layers on these devices by turns.
run()
{
    local program=$B/tests/test_$1 name=$1_on_$3
    [ -x "$program" ] || { skip "$name" "$program is not built"; return; }
    if TEST_ONLY=${4:-} PITH_FAR_DEVICES=$2 PITH_LAYER_DEVICES=$3 "$program" >"$out" 2>&1; then
        ok "$name"
    else
        fail "$name" "$(grep -m 1 ^FAIL "$out" || tail -n 1 "$out")"
    fi
}
run store 2 2,0,1 test_same_bits
run store_disk 1 1
[ $all = 0 ] || run snapshot 1 1
run snapshot 2 2,0,1
run extend 1 1
run cancel 2 2,0,1
finish
