#!/usr/bin/env bash
# archs.sh -- prints the table of docs/archs.md: the architectures of archs.def in its order, each
# with the file that its row or descriptor is in.
cd "$(dirname "$0")/.." || exit 1
all=$(for f in src/arch/*.c; do echo "$f $(tr '\n' ' ' <"$f")"; done)
echo '| general.architecture | written in |'
echo '| --- | --- |'
sed -nE 's/^X\((\w+)\).*/\1/p' src/arch/archs.def | while read -r symbol; do
    grep -E "\b$symbol(,| =)" <<<"$all" |
        sed -nE "s/^([^ ]+) .*\b$symbol(, *| = *\{ *\.name = *)\"([^\"]+)\".*/| \`\3\` | \`\1\` |/p"
done
