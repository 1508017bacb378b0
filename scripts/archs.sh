#!/usr/bin/env bash
# archs.sh -- prints the table of docs/archs.md: the architectures of archs.def in its order, each
# with what the comment at the head of its file says of it (paper, what it has), that file, and how
# far `pith logits` is from what it was compared with (docs/archs-errors.txt).
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

# FILE, tab, NAME or nothing, tab, text: of each head comment the first paragraph, and the entries
# " *   NAME  text".
heads()
{
    awk '
        function end() {
            if (text != "") {
                gsub(/ +/, " ", text)
                sub(/ $/, "", text)
                print file "\t" name "\t" text
            }
            text = name = ""
        }
        FNR == 1 { end(); file = FILENAME; on = 1; sub(/^\/\* [a-z0-9_]+\.c -- /, " * ") }
        !on { next }
        { last = sub(/\*\/.*/, "") }
        /^ \*   [a-z][a-z0-9_.-]* +[^ ]/ {
            end()
            name = $2
            sub(/^ \*   [^ ]+ +/, "")
            text = $0 " "
            if (last) { end(); on = 0 }
            next
        }
        /^ \* *$/ || (name == "" && /^ \*  /) || (name != "" && !/^ \*      /) { end(); first = 1 }
        /^ \* [^ ]/ && FNR == 1 { first = 0 }
        name != "" || !first { sub(/^ \* */, ""); text = text $0 " " }
        last { end(); on = 0; first = 1 }
        END { end() }' src/arch/*.c src/arch/*/*.c
}

all=$(for f in src/arch/*.c src/arch/*/*.c; do echo "$f $(tr '\n' ' ' <"$f")"; done)
echo '| general.architecture | what it is | written in | compared with | error |'
echo '| --- | --- | --- | --- | --- |'
sed -nE 's/^X\((\w+)\).*/\1/p' src/arch/archs.def | while read -r symbol; do
    grep -E "\b$symbol(,| =)" <<<"$all" |
        sed -nE "s/^([^ ]+) .*\b$symbol(, *| = *\{ *\.name = *)\"([^\"]+)\".*/\3 \1/p"
done | awk -v errors="$errors" -v heads=<(heads) '
    function what(name, file, n, i) {
        if (file "\t" name in said)
            return said[file "\t" name]
        n = split(names[file], list, " ")
        for (i = 1; i <= n; i++) # one entry for both
            if (said[file "\t" list[i]] ~ "(^|[^a-z0-9_-])" name "([^a-z0-9_-]|$)")
                return said[file "\t" list[i]]
        return said[file "\t"]
    }
    BEGIN {
        while ((getline line <heads) > 0) {
            split(line, part, "\t")
            gsub(/\|/, "\\|", part[3])
            sub(/\.$/, "", part[3])
            said[part[1] "\t" part[2]] = part[3]
            names[part[1]] = names[part[1]] " " part[2]
        }
        while ((getline line <errors) > 0) {
            split(line, part, "\t")
            with[part[1]] = with[part[1]] (with[part[1]] ? ", " : "") part[2]
            if (part[3] + 0 > most[part[1]] + 0)
                most[part[1]] = part[3]
        }
    }
    { printf "| `%s` | %s | `%s` | %s | %s |\n", $1, what($1, $2), $2, with[$1], most[$1] }'
