#!/usr/bin/env bash
# In make test alone: it takes long at any scale.
# test_rules.sh -- the rules of the house find what they are there to find: small trees that break
# one each, looked at by copies of the scripts.
. "$(dirname "$0")"/../report.sh

# tree: a new tree that keeps every rule
tree()
{
    rm -rf "$dir/t"
    mkdir -p "$dir/t/"{src/base,src/run,src/graph,include,docs,build,scripts}
    for f in rules check_text check_layers check_forbidden; do
        # what comments in them name is elsewhere
        sed '2,$ {/^ *#/d}' scripts/$f.sh >"$dir/t/scripts/$f.sh"
    done
    chmod +x "$dir/t/scripts/"*
    touch "$dir/t/include/pith.h" "$dir/t/src/graph/ops.def" "$dir/t/src/graph/state.def"
    printf '/* a.h -- a thing. */\nint a(void);\n' >"$dir/t/src/base/a.h"
    printf '/* a.c -- see a.h. */\n#include "base/a.h"\n' >"$dir/t/src/base/a.c"
    printf '/* b.c -- uses a thing. */\n#include "base/a.h"\n' >"$dir/t/src/run/b.c"
    printf '# Rooms\n\n| folder | sees |\n| --- | --- |\n| `run` | `base` |\n\n' \
        >"$dir/t/ARCHITECTURE.md"
    printf '# Words\n\nSee `src/base/a.c`, a.h and `base/*.c`.\n' >"$dir/t/docs/words.md"
}
# broken NAME SCRIPT RULE PATTERN: the tree fails this rule, and is told why
broken()
{
    local found
    found=$(B=build "$dir/t/scripts/$2" 2>/dev/null | grep "^FAIL $3: ")
    if grep -qE "$4" <<<"$found"; then ok "$1"; else fail "$1" "wanted $4, found: $found"; fi
}
# kept NAME SCRIPT RULE
kept()
{
    same "$1" "$(B=build "$dir/t/scripts/$2" 2>/dev/null | grep -E "^(ok|FAIL) $3\b")" "ok $3"
}

tree
for rule in lines_under_100_columns named_files_exist folders_of_25_files; do
    kept "$rule" check_text.sh "$rule"
done
printf '/* %s */\n' "$(printf 'x%.0s' {1..95})" >>"$dir/t/src/base/a.c"
broken long_line check_text.sh lines_under_100_columns 'src/base/a.c:3:'
tree
mkdir -p "$dir/t/server/web"
printf '// %s\n' "$(printf 'x%.0s' {1..98})" >"$dir/t/server/web/a.js"
broken long_line_of_a_page check_text.sh lines_under_100_columns 'server/web/a.js:1:'
tree
printf '\n%s\n' "$(printf 'wörd %.0s' {1..20})" >>"$dir/t/docs/words.md"
kept columns_are_no_bytes check_text.sh lines_under_100_columns
printf '%s\n' "$(printf 'wörd %.0s' {1..21})" >>"$dir/t/docs/words.md"
broken long_line_of_a_document check_text.sh lines_under_100_columns 'words.md:6:'
tree
printf '\n| %s |\n\n```\n%s\n```\n' "$(printf 'x%.0s' {1..200})" "$(printf 'x%.0s' {1..200})" \
    >>"$dir/t/docs/words.md"
kept tables_are_as_wide_as_they_are check_text.sh lines_under_100_columns
for name in gone.c base/gone.h src/run/a.h 'run/*.h'; do
    tree
    printf '/* As in %s, and in a.c. */\n' "$name" >>"$dir/t/src/base/a.c"
    broken "names_${name//[^a-z]/_}" check_text.sh named_files_exist "a.c:3: names ${name//\*/.}"
done
tree
printf '\nThe page docs/gone.md tells.\n' >>"$dir/t/docs/words.md"
broken names_in_a_document check_text.sh named_files_exist 'words.md:5: names docs/gone.md'
tree
printf 'static const char s[] = "gone.c";\n' >>"$dir/t/src/base/a.c"
kept strings_name_nothing check_text.sh named_files_exist
for i in {1..24}; do echo >"$dir/t/src/base/f$i.c"; done
broken full_folder check_text.sh folders_of_25_files 'src/base has 26 files'

# sizes ROW...: a tree of three rooms, `base` of over 1,000 lines, and a table of their sizes
sizes()
{
    tree
    seq -f '/* %g */' 1000 >>"$dir/t/src/base/a.c"
    printf '%s\n' '| room | then | now | why |' '| --- | ---: | ---: | --- |' "$@" '' \
        >>"$dir/t/ARCHITECTURE.md"
}
small=('| `run` | 2 | 2 | |' '| `graph` | 0 | 0 | |')
sizes '| `base` | 1,000 | 1,040 | |' "${small[@]}"
kept sizes_are_near check_text.sh rooms_are_as_large_as_told
sizes '| `base` | 1,000 | 1,060 | |' "${small[@]}"
broken size_is_stale check_text.sh rooms_are_as_large_as_told 'base is said to have 1060 .* 1004'
sizes '| `base` | 900 | 1,000 | |' "${small[@]}"
broken size_without_a_reason check_text.sh rooms_are_as_large_as_told 'base grew by over a tenth'
sizes '| `base` | 900 | 1,000 | more |' "${small[@]}"
kept size_with_a_reason check_text.sh rooms_are_as_large_as_told
sizes '| `base` | 1,000 | 1,000 | |' "${small[0]}"
broken size_is_not_told check_text.sh rooms_are_as_large_as_told 'no row for the size of graph'

tree
for rule in includes_exist layers picture_of_rooms no_loop_of_folders headers_compile_alone; do
    kept "$rule" check_layers.sh "$rule"
done
printf '#include "run/b.h"\n' >>"$dir/t/src/base/a.c"
broken include_that_is_not_there check_layers.sh includes_exist 'a.c:3 includes run/b.h'
printf 'int b(void);\n' >"$dir/t/src/run/b.h"
broken upward_include check_layers.sh layers 'base may not see run'
broken arrow_that_is_not_drawn check_layers.sh picture_of_rooms \
    'is not in ARCHITECTURE.md: . `base`'
tree
printf '| `base` | `run` |\n\n' >"$dir/arrow"
sed -i "/| --- | --- |/r $dir/arrow" "$dir/t/ARCHITECTURE.md"
broken arrow_that_is_not_there check_layers.sh picture_of_rooms 'and not so: . `base` . `run`'
tree
mkdir "$dir/t/src/text" "$dir/t/src/text/"{x,y}
printf '#include "text/y/y.h"\n' >"$dir/t/src/text/x/x.c"
printf 'int y(void);\n' >"$dir/t/src/text/y/y.h"
kept one_way_is_no_loop check_layers.sh no_loop_of_folders
printf 'int x(void);\n' >"$dir/t/src/text/x/x.h"
printf '#include "text/x/x.h"\n' >"$dir/t/src/text/y/y.c"
broken loop_of_folders check_layers.sh no_loop_of_folders 'text/x'
tree
printf 'void b(void) { gguf_find(g, "general.name"); }\n' >>"$dir/t/src/run/b.c"
kept keys_of_all_files check_layers.sh keys_are_read_by_tables
printf 'void c(void) { gguf_find(g, "llama.block_count"); }\n' >>"$dir/t/src/run/b.c"
broken key_of_an_architecture check_layers.sh keys_are_read_by_tables 'src/run/b.c:4:'
tree
printf 'void b(void) { gguf_find(g, key); }\n' >>"$dir/t/src/run/b.c"
broken key_made_elsewhere check_layers.sh keys_are_read_by_tables 'src/run/b.c:3:'
tree
printf 'void b(void) { f(key, "%%s.x", m->arch->name); }\n' >>"$dir/t/src/run/b.c"
broken key_put_together check_layers.sh keys_are_read_by_tables 'src/run/b.c:3:'

# What a file calls its architecture is looked at in one place more: a table of the vocabulary.
tree
mkdir -p "$dir/t/src/"{arch,text/vocab}
printf 'static const char *const x[] = {\n    {"general.architecture", "bert"},\n};\n' \
    >"$dir/t/src/text/vocab/special.c"
printf 'const struct arch a = {.name = "bert"};\n' >"$dir/t/src/arch/bert.c"
kept a_table_of_families check_layers.sh architectures_are_told_apart_at_home
sed -i 's/"bert"/"berta"/' "$dir/t/src/text/vocab/special.c"
broken family_that_is_not_there check_layers.sh architectures_are_told_apart_at_home 'is berta'
tree
printf 'int b(void) { return is(g, "general.architecture", "bert"); }\n' >>"$dir/t/src/run/b.c"
broken family_told_apart check_layers.sh architectures_are_told_apart_at_home 'src/run/b.c:3:'

# Kinds of rows and ranges are not asked for by name; nothing but kernels has an instruction set.
tree
printf 'STATE_ROWS(KV, "K and V", 0)\nSTATE_RANGE(NEAR, "near", -1, 0, 0)\n' \
    >"$dir/t/src/graph/state.def"
printf 'int b(void) { return STATE_FLAT + RANGE_NEARLY + PITH_RANGE; }\n' >>"$dir/t/src/run/b.c"
kept names_of_other_things check_layers.sh states_are_known_by_their_facts
printf 'int c(struct state *s) { return s->rows == STATE_KV; }\n' >>"$dir/t/src/run/b.c"
broken name_of_a_kind check_layers.sh states_are_known_by_their_facts 'src/run/b.c:4:'
printf 'int d(struct state *s) { return s->range == RANGE_NEAR; }\n' >>"$dir/t/src/run/b.c"
broken name_of_a_range check_layers.sh states_are_known_by_their_facts 'src/run/b.c:5:'
tree
printf 'void b(void) { f(value_row(x, &c->dst, r), value_in_row(x, &c->src[0], r)); }\n' \
    >>"$dir/t/src/run/b.c"
kept operands_that_are_read check_layers.sh operands_are_only_read
printf 'void c(void) { f(value_row(x, &c->src[0], r)); }\n' >>"$dir/t/src/run/b.c"
broken operand_to_be_written check_layers.sh operands_are_only_read 'src/run/b.c:4:'
for header in xmmintrin immintrin arm_sve; do
    tree
    printf '#include <%s.h>\n' $header >>"$dir/t/src/run/b.c"
    broken "set_of_$header" check_layers.sh instruction_sets_in_kernel_folders 'src/run/b.c:3:'
done
tree
printf 'double b(double x) { return fmath_exp(x) + s.exp(x) + sqrt(x); }\n' >>"$dir/t/src/run/b.c"
kept functions_of_our_own check_forbidden.sh no_libm_in_results
printf 'float c(float x) { return expf(x); }\n' >>"$dir/t/src/run/b.c"
broken libm check_forbidden.sh no_libm_in_results 'src/run/b.c:4:'

# A backend is known by its folder, and no rule names it but the CPU's and the far device's.
tree
mkdir -p "$dir/t/src/backend/"{cpu,far,gpu,new}
printf 'int g(void);\n' >"$dir/t/src/backend/gpu/g.h"
printf 'int f(void);\n' >"$dir/t/src/backend/far/f.h"
printf '#include <no_such_library.h>\n#include "backend/gpu/g.h"\n' >"$dir/t/src/backend/new/n.h"
kept backends_share_what_gpus_have check_layers.sh layers
kept a_library_that_is_not_here check_layers.sh headers_compile_alone
for own in cpu far; do
    printf '#include "backend/gpu/g.h"\n' >"$dir/t/src/backend/$own/a.c"
    broken "gpus_are_not_for_$own" check_layers.sh layers "$own/a.c:1 .*backends do not see each"
done
printf '#include "backend/far/f.h"\n' >"$dir/t/src/backend/new/n.c"
broken backends_are_apart check_layers.sh layers 'new/n.c:1 .*backends do not see each other'
printf 'static size_t n;\n' >"$dir/t/src/backend/new/n.h"
broken header_that_needs_another check_layers.sh headers_compile_alone 'size_t'
kept no_output check_forbidden.sh no_output
printf 'void n(void) { puts(""); }\n' >"$dir/t/src/backend/new/n.c"
broken backends_are_of_the_library check_forbidden.sh no_output 'new/n.c:1'

# Lists in two languages: copies of ours, one of which is edited.
# unlike NAME RULE PATTERN FILE EDIT: an edit, as sed takes it, that the rule finds; PATTERN
# "": it is as it should be
unlike()
{
    rm -rf "$dir/t"
    mkdir -p "$dir/t/build"
    cp --parents Makefile scripts/{check_lists,rules,record_bits}.sh cli/cli.h cli/args/man.c \
        src/{backend/gpu,graph,backend/cpu,base/machine,backend/vulkan}/*.[ch] \
        src/backend/vulkan/shaders/*/* src/backend/cuda/kernels/* src/tensor/dtypes.def \
        tests/backend/test_{nvcc,arm}.sh tests/run/test_bits.c "$dir/t"
    if [ -z "$4" ]; then
        kept "$1" check_lists.sh "$2"
        return
    fi
    sed -i "$5" "$dir/t/$4"
    broken "$1" check_lists.sh "$2" "$3"
}
for rule in families_have_kernels ops_of_rows_have_one_number types_have_one_number \
    activations_have_one_number coded_types_have_products cache_types_are_offered \
    levels_are_named_everywhere; do
    unlike "$rule" "$rule" '' ''
done
gpu=src/backend/gpu kernels=src/backend/cuda/kernels shared=src/backend/vulkan/shaders/shared
unlike family_without_a_kernel families_have_kernels 'no file of .*cuda/kernels has KERNEL.best' \
    $kernels/best.cu 's/KERNEL(best/KERNEL(worst/'
unlike family_without_a_shader families_have_kernels 'has other, src/backend/vulkan' \
    $gpu/gpu.h 's/    X(best) /    X(best) X(other) /'
unlike shader_without_a_family families_have_kernels 'shaders has adapt, ' \
    $gpu/gpu.h 's/    X(adapt) //'
unlike op_without_a_number ops_of_rows_have_one_number 'has OTHER 17, rows.comp has not' \
    $gpu/ops.c 's/    X(MOE_PICK)$/    X(MOE_PICK) X(OTHER)/'
unlike ops_in_another_order ops_of_rows_have_one_number 'rows.cu has MOE_PICK 15' \
    $kernels/rows.cu 's/MOE_ROUTE, MOE_PICK/MOE_PICK, MOE_ROUTE/'
unlike type_of_another_number types_have_one_number 'types.glsl has Q2_0 29' \
    $shared/types.glsl 's/T_Q2_0 = 28/T_Q2_0 = 29/'
unlike type_without_a_number types_have_one_number 'has Q2_0 28, types.cuh has not' \
    $kernels/types.cuh 's/T_Q1_0, T_Q2_0/T_Q1_0/'
unlike list_that_is_not_found types_have_one_number 'no list found: TYPES' \
    $gpu/ops.c 's/define TYPES(X)/define KINDS(X)/'
unlike activation_without_a_case activations_have_one_number 'has 10, .*common.cuh has not' \
    $kernels/common.cuh 's/case 10: return/default: return/'
unlike type_without_products coded_types_have_products 'has nvfp4, CODED_TYPES' \
    $kernels/products.cuh '/X(nvfp4, /d'
unlike type_that_is_not_compiled coded_types_have_products 'has q2_0, tests/backend/test_nvcc.sh' \
    tests/backend/test_nvcc.sh 's/nvfp4 q1_0 q2_0/nvfp4 q1_0/'
unlike cache_type_that_is_not_offered cache_types_are_offered 'has iq4_nl, CACHE_TYPES' \
    cli/cli.h 's/q4_0|iq4_nl/q4_0/'
unlike level_that_is_not_told levels_are_named_everywhere 'has amx, cli/args/man.c has not' \
    cli/args/man.c 's/avx512bf16, amx, neon/avx512bf16, neon/'
unlike level_without_bits levels_are_named_everywhere 'has dotprod, scripts/record_bits.sh' \
    scripts/record_bits.sh 's/neon dotprod/neon/'
unlike level_without_flags levels_are_named_everywhere 'nothing for [*]_dotprod.c' \
    Makefile 's/%_dotprod.c/%_other.c/'
unlike level_without_products levels_are_named_everywhere 'has no row of amx' \
    src/backend/cpu/kern_mm.c 's/&kern_mm_amx/\&kern_mm_other/'
unlike level_without_a_test levels_are_named_everywhere 'no test of bits runs avx512' \
    tests/run/test_bits.c 's/.cpu = "avx512"/.cpu = "avx2"/'

# What continuous integration runs says that it is that: a skipped test fails there.
mkdir "$dir/bin"
printf '#!/bin/sh\necho "CI is $CI"\necho "1 passed, 0 failed, 0 skipped"\n' >"$dir/bin/make"
chmod +x "$dir/bin/make"
same ci_run_says_ci "$(env -u CI PATH="$dir/bin:$PATH" .ci/run | head -n 1)" "CI is 1"
same ci_run_keeps_ci "$(CI=yes PATH="$dir/bin:$PATH" .ci/run | head -n 1)" "CI is yes"

finish
