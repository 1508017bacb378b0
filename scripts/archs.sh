#!/usr/bin/env bash
# archs.sh -- prints the table of docs/archs.md: the architectures of archs.def in its order, each
# with the file that its row or descriptor is in, and with how far `pith logits` is from what it was
# compared with (docs/archs-errors.txt).
#
#   scripts/archs.sh               the table
#   scripts/archs.sh --measure     writes docs/archs-errors.txt anew, by a built program: recorded
#                                  models, tiny models of transformers, second implementations
cd "$(dirname "$0")/.." || exit 1
errors=docs/archs-errors.txt

# ARCHITECTURE ERROR of what stands for it in a comparison's lines "# MODEL ARCHITECTURE ERROR", the
# greatest of its models.
greatest()
{
    awk -v with="$1" '$1 == "#" && NF == 4 && $4 ~ /^[0-9.]+e/ && !($3 in e && e[$3] >= $4 + 0) {
            e[$3] = $4 + 0
        }
        END { for (a in e) printf "%s\t%s\t%.1e\n", a, with, e[a] }'
}

if [ "${1:-}" = --measure ]; then
    export PYTHONPATH=tests
    python=$(scripts/model.sh --python) || python=python3
    {
        "$python" tests/arch/measure.py | greatest record
        "$python" tests/arch/test_transformers.py | greatest transformers
        "$python" tests/arch/test_second.py | greatest second
    } | LC_ALL=C sort >"$errors.new" && mv "$errors.new" "$errors"
    exit
fi

all=$(for f in src/arch/*.c src/arch/*/*.c; do echo "$f $(tr '\n' ' ' <"$f")"; done)
echo '| general.architecture | written in | compared with | error |'
echo '| --- | --- | --- | --- |'
sed -nE 's/^X\((\w+)\).*/\1/p' src/arch/archs.def | while read -r symbol; do
    grep -E "\b$symbol(,| =)" <<<"$all" |
        sed -nE "s/^([^ ]+) .*\b$symbol(, *| = *\{ *\.name = *)\"([^\"]+)\".*/\3 \1/p"
done | awk -v errors="$errors" '
    BEGIN {
        while ((getline line <errors) > 0) {
            split(line, part, "\t")
            with[part[1]] = with[part[1]] (with[part[1]] ? ", " : "") part[2]
            if (part[3] + 0 > most[part[1]] + 0)
                most[part[1]] = part[3]
        }
    }
    { printf "| `%s` | `%s` | %s | %s |\n", $1, $2, with[$1], most[$1] }'
