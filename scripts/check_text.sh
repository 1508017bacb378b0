#!/usr/bin/env bash
# check_text.sh -- what a reader meets: lines of at most 100 columns, files that exist where a
# comment or a document names them, folders that a person can hold in the head, rooms as large as
# they are said to be.
. "$(dirname "$0")"/rules.sh
export LC_ALL=C.UTF-8

# Files that are not tracked yet, too: what is written is looked at before it is kept.
list()
{
    git ls-files -co --exclude-standard 2>/dev/null ||
        find . -type f -not -path './build*' | sed 's|^\./||'
}
ours() { list | grep -E "$1" | grep -vE '^(tests/data/|tests/lab/|fuzz/corpus/)' | sort -u; }

# prose FILE...: "file:line: text" of a document without its tables and its blocks of code.
prose()
{
    awk 'FNR == 1 { code = 0 }
        /^[ ]*(```|~~~)/ { code = !code; next }
        !code && !/^\|/ && !/^    / { print FILENAME ":" FNR ": " $0 }' "$@" /dev/null
}

# Tables and blocks of code of documents are as wide as what they show.
{
    ours '\.(c|h|inl|def|py|sh|comp|glsl|cuh?|cpp|js|css|html)$|(^|/)Makefile$' | tr '\n' '\0' |
        xargs -0 grep -nHE '^.{101,}$'
    prose $(ours '\.md$') | grep -E '^[^:]+:[0-9]+: .{101,}$'
} | cut -c 1-120 | rule lines_under_100_columns

# Every file that is named: by its path from the root, from src/ or include/, or from the folder of
# whoever names it; without a folder, by the name of a file anywhere. NAME, N and * stand for
# anything. Headers of the system stand in <>.
{
    comments $(ours '\.(c|h|inl|def|js|css)$')
    grep -nHE '^[[:space:]]*#|"""' $(ours '\.(py|sh)$|(^|/)Makefile$')
    prose $(ours '\.md$')
} >"$B/.prose"
list | sort -u >"$B/.files"
awk -v tracked="$B/.files" '
    # a name as a pattern: capitals and * for anything, [ch] for one of these
    function pattern(s)
    {
        gsub(/\./, "\\.", s)
        gsub(/\*/, "[^ ]*", s)
        gsub(/(NAME|LEVEL|GROUP|ROOM)/, "[a-z0-9_]+", s)
        return s
    }
    function there(s,    f, p)
    {
        if (s in file || s in base) return 1
        if (s !~ /[*\[]|NAME|LEVEL|GROUP|ROOM/) return 0
        p = "(^|/)" pattern(s) "$"
        for (f in file) if (f ~ p) return 1
        return 0
    }
    BEGIN {
        while ((getline f < tracked) > 0) {
            file[f] = 1
            n = f; sub(/.*\//, "", n); base[n] = 1
        }
    }
    {
        match($0, /^[^:]+:[0-9]+:/)
        where = substr($0, 1, RLENGTH); text = substr($0, RLENGTH + 1)
        dir = where; sub(/:.*/, "", dir); if (!sub(/\/[^\/]*$/, "", dir)) dir = "."
        gsub(/[`"(),;:'\''|]|->|\.\.\./, " ", text)
        n = split(text, words, /[ \t]+/)
        for (i = 1; i <= n; i++) {
            name = words[i]
            sub(/[.?!]+$/, "", name)
            if (name !~ /^[]A-Za-z0-9_.*\/[-]+\.(c|h|inl|def|py|sh|md|\[ch\])$/) continue
            if (name ~ /^\.[a-z]+$/ || name ~ /^\/\//) continue
            sub(/^\.\//, "", name)
            if (there(name) || there("src/" name) || there("include/" name)) continue
            if (there(dir "/" name)) continue
            print where " names " name ", which is not there"
        }
    }' "$B/.prose" | rule named_files_exist

# Of sources: what a web page or a test reads is data.
ours '\.(c|h|inl|def|py|sh|comp|glsl|cu|cuh|js)$' | sed 's|/[^/]*$||' | sort | uniq -c |
    awk '$1 > 25 {print $2 " has " $1 " files, over 25"}' | rule folders_of_25_files

# The table of how large the rooms are: nobody has to count for each change, but what it says is so.
if grep -q '^| room | then | now |' ARCHITECTURE.md; then
    ours . | tr '\n' '\0' | xargs -0 grep -acHs '' >"$B/.lines"
    awk -F ' *[|] *' '
        FNR == NR {
            match($0, /:[0-9]+$/)
            f = substr($0, 1, RSTART - 1); sub(/^src\//, "", f)
            lines[f] = substr($0, RSTART + 1)
            if (/^src\// || /^(cli|server|tests)\//) { sub(/\/.*/, "", f); room[f] = 1 }
            next
        }
        /^\| room \| then \| now \|/ { table = 1 }
        !/^\|/ { table = 0 }
        !table || !/^\| `/ { next }
        {
            name = $2; then = $3; now = $4; n = 0
            gsub(/`/, "", name); gsub(/,/, "", then); gsub(/,/, "", now)
            for (f in lines) if (index(f, name "/") == 1) n += lines[f]
            off = n > now ? n - now : now - n
            row = "ARCHITECTURE.md:" FNR ": " name
            if (off > 50 && off * 20 > n) print row " is said to have " now " lines, and has " n
            if (n * 10 > then * 11 && $5 == "") print row " grew by over a tenth without a reason"
            delete room[name]
        }
        END { for (r in room) print "ARCHITECTURE.md has no row for the size of " r }
    ' "$B/.lines" ARCHITECTURE.md | rule rooms_are_as_large_as_told
fi

# The page of architectures is the list.
if [ -e docs/archs.md ]; then
    diff <(grep '^|' docs/archs.md) <(scripts/archs.sh) |
        sed -nE -e 's/^< (.*)/docs\/archs.md has, and it is not so: \1/p' \
            -e 's/^> (.*)/docs\/archs.md lacks: \1/p' | rule archs_are_listed
fi

rules_end
