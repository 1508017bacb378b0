#!/usr/bin/env bash
# packages.sh -- makes sure that the private Python environment of model.sh has the packages that
# tests use, fetching them the first time.
#
# Silent, quick and offline when they are there. Without them their tests are skipped by name.
set -u
cd "$(dirname "$0")" || exit 1

# Each is imported by the name it is installed by.
packages=(openai anthropic ollama jsonschema schemathesis tokenizers playwright numpy)

python=$(./model.sh --make-python) || exit $?
"$python" -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))" \
    "${packages[@]}" && exit 0
echo "packages: fetching ${packages[*]} (about 120 MB, once)" >&2
"$python" -m pip install --disable-pip-version-check --quiet --retries 2 --timeout 20 \
    "${packages[@]}" >&2 || {
    echo "packages: pip could not fetch them; try again with a network" >&2
    exit 1
}
