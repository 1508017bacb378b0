#!/usr/bin/env bash
# test_deps.sh -- what scripts/deps.sh would install: of each group what is missing, of others that
# are in a group, too; no package keeps another from being installed. apt-get is one that writes
# down what it is told and knows all packages but those in $none.
. "$(dirname "$0")"/../report.sh

bin=$dir/bin
mkdir "$bin"
for p in bash mktemp rm tail dirname uname gcc python3; do
    path=$(command -v "$p") || skip_all deps "there is no $p"
    ln -s "$path" "$bin/$p"
done
fake() { printf '#!/bin/bash\n%s\n' "$2" >"$bin/$1" && chmod +x "$bin/$1"; }
fake id 'echo "${fake_uid:-0}"'
fake pkg-config '[[ " $have " == *" $2 "* ]]'
fake apt-get 'echo "$*" >>"$told"
for p; do [[ " $none " != *" $p "* ]] || exit 100; done'
export told=$dir/told none= have=

# group GROUP...: what is told to apt-get
group()
{
    : >"$told"
    PATH=$bin "$bin/bash" scripts/deps.sh "$@" >"$out" 2>"$err"
    rc=$?
}
names() { if grep -qE -e "$2" "$told"; then ok "$1"; else fail "$1" "found \"$(head -c 300 "$told" |
    tr '\n' ';')\", wanted $2"; fi; }

group test
same deps_test_rc "$rc" 0
for package in chromium tmux qemu-user gcc-aarch64-linux-gnu clang libclang-rt-dev libedit-dev \
    groff systemd openssl curl "g[+][+]"; do
    names "deps_test_$package" "^install .* $package( |\$)"
done
same deps_at_once "$(grep -c '' "$told")" 1
group model
same deps_model_alone "$(grep -c -e tmux -e qemu -e chromium "$told")" 0
have="libedit" group chat
same deps_one_of_two "$(cat "$told")" "install -y --no-install-recommends tmux"
fake tmux :
have="libedit" group chat
same deps_nothing_missing "$rc:$(cat "$told" "$out" "$err")" 0:
rm "$bin/tmux"

none="chromium" group test
same deps_all_but_one_rc "$rc" 3
for package in tmux qemu-user; do
    names "deps_without_chromium_$package" "^install -y --no-install-recommends $package\$"
done
case $(cat "$err") in
*"could not install chromium;"*) ok deps_says_which ;;
*) fail deps_says_which "found $(tail -n 1 "$err")" ;;
esac
none="tmux qemu-user" group arm chat
case $rc:$(cat "$err") in
3:*"could not install qemu-user tmux;"*) ok deps_says_all ;;
*) fail deps_says_all "found $rc, $(tail -n 1 "$err")" ;;
esac

fake_uid=1000 group test
same deps_nobody_asked "$rc:$(cat "$told")" 3:
export fake_uid=1000
group test
same deps_no_root "$rc:$(cat "$told"):$(grep -c \
    "sudo sh -c 'apt-get update && apt-get install .* tmux" "$err")" 3::1
group nothing
same deps_unknown "$rc" 2
finish
