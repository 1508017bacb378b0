/* test_grammar_shapes.c -- grammars as people write them: all are taken, harmless ambiguities among
 * them (which `if` an `else` belongs to, separators that may be left out, words that are several
 * things), and what a token of a long text costs, accepted or masked, is counted and bounded. */
#include "base/str.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "vocab_image.h"

/* begin, loop as often as it fits into n bytes (0: TEXT), end: a text that the grammar reads. */
struct shape {
    const char *name, *grammar, *begin, *loop, *end;
    size_t n; /* of loops that lie in each other and may be read in several ways */
};
static const struct shape shapes[] = {
    {"JSON",
     "root ::= ws value ws\n"
     "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
     "object ::= \"{\" ws (member (\",\" ws member)*)? \"}\" ws\n"
     "member ::= string ws \":\" ws value ws\n"
     "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\" ws\n"
     "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" "
     "[0-9a-f]{4}))* \"\\\"\" ws\n"
     "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [+-]? [0-9]+)? ws\n"
     "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
     "[", "{\"a\": [1, \"b\\n\"], \"c\":\n  -2.5e3}, ", "null]", 0},
    {"JSON, nested",
     "root ::= v\nv ::= w (\"{\" w (s w \":\" v (\",\" w s w \":\" v)*)? \"}\" | "
     "\"[\" (v (\",\" v)*)? \"]\" | s | [0-9]+) w\n"
     "s ::= \"\\\"\" [a-z]* \"\\\"\"\nw ::= [ \\n\\t]*",
     "", "[ [1] , ", "", 0},
    {"arithmetic",
     "root ::= expr \"\\n\"\nexpr ::= term (ws [-+] ws term)*\n"
     "term ::= factor (ws [*/%] ws factor)*\nfactor ::= base (\"^\" factor)?\n"
     "base ::= number | name (\"(\" ws expr (\",\" ws expr)* \")\")? | \"(\" ws expr "
     "ws \")\" | \"-\" base\nnumber ::= [0-9]+ (\".\" [0-9]+)?\nname ::= [a-z]+\n"
     "ws ::= \" \"*",
     "1", " + f(2, (x - 3) * -4.5) / y^2^3", "\n", 0},
    {"arithmetic without precedence",
     "root ::= e\ne ::= n | n \" \" [-+*/] \" \" e | \"(\" e \")\" | \"(\" e \") \" [-+*/] \" \" "
     "e\nn ::= [0-9]+",
     "", "1 + (2) * ", "3", 0},
    {"equations",
     "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] ws term)*\nterm ::= "
     "ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= "
     "[0-9]+ ws\nws ::= [ \\t\\n]*",
     "", "a + (b * 2)=\n 3\n", "a=1\n", 0},
    {"statements with else",
     "root ::= stmt\nstmt ::= \"if (\" cond \") \" stmt | \"if (\" cond \") \" stmt \"else \" stmt "
     "| name \" = \" cond \"; \" | \"{ \" stmt* \"} \" | \"while (\" cond \") \" stmt\n"
     "cond ::= atom ([<>+] atom)*\natom ::= name | [0-9]+ | \"(\" cond \")\"\nname ::= [a-z] "
     "[a-z0-9]*",
     "{ ", "if (a<b) if (c) x = 1; else y = 2; ", "} ", 0},
    {"statements, else behind else",
     "root ::= stmt\nstmt ::= \"if (\" cond \") \" stmt (\"else \" stmt)? | name \"; \"\n"
     "cond ::= name\nname ::= [a-z]+",
     "", "if (a) ", "x; else y; else z; ", 300},
    {"statements, an if in an else", "root ::= s\ns ::= \"if (x) \" s (\"else \" s)? | \"f(); \"",
     "", "if (x) f(); else ", "f(); ", 0},
    {"statements, short", "root ::= s\ns ::= \"if x \" s (\"else \" s)? | \"f; \"", "",
     "if x if x f; else ", "f; ", 1000},
    {"statements, deep", "root ::= s\ns ::= \"if x \" s (\"else \" s)? | \"f; \"", "",
     "if x ", "f; ", 0},
    {"statements, one letter each", "root ::= s\ns ::= \"i\" s | \"i\" s \"e\" s | \"x\"", "",
     "iixe", "x", 300},
    {"palindromes", "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"\"", "", "a", "", 0},
    {"palindromes of all letters",
     "root ::= s\ns ::= \"a\" s \"a\" | \"b\" s \"b\" | \" \" s \" \" | [a-z ]?", "",
     "ab aab abaa ", "", 0},
    {"statements of C",
     "root ::= decl*\n"
     "decl ::= type \" \" name \"(\" params? \")\" ws block\n"
     "type ::= \"int\" | \"float\" | \"char\" \"*\"?\n"
     "params ::= type \" \" name (\", \" type \" \" name)*\n"
     "block ::= \"{\" ws stmt* \"}\" ws\n"
     "stmt ::= type \" \" name (\" = \" expr)? \";\" ws | name \" = \" expr \";\" ws | name "
     "\"(\" args? \")\" \";\" ws | \"return \" expr \";\" ws | \"if (\" expr \")\" ws stmt "
     "(\"else \" stmt)? | \"while (\" expr \")\" ws stmt | \"for (\" name \" = \" expr \"; \" "
     "expr \"; \" name \" = \" expr \")\" ws stmt | block | \"//\" [^\\n]* \"\\n\" ws\n"
     "args ::= expr (\", \" expr)*\n"
     "expr ::= unary ((\" + \" | \" - \" | \" * \" | \" < \" | \" == \") unary)*\n"
     "unary ::= \"-\"? (name | name \"(\" args? \")\" | [0-9]+ | \"(\" expr \")\")\n"
     "name ::= [a-z] [a-z0-9_]*\nws ::= [ \\n]*",
     "int f(int a, char* b) {\n",
     "if (a < 1) if (g(b, 2) == (a)) return -a; else { a = 1 + 2; } // c\n", "}\n", 0},
    {"list, separators may be left out",
     "root ::= item (sep? item)* sep?\nitem ::= [a-z0-9]+\nsep ::= \",\" \" \"? | \" \"", "a",
     ", b c,d", "", 0},
    {"list, lines", "root ::= (\"- \" line)+\nline ::= [^\\n]+ \"\\n\"", "- a\n", "- b c\n", "", 0},
    {"list, numbered",
     "root ::= (n \". \" w (\" \" w)* \".\"? \"\\n\")+\nn ::= [1-9] [0-9]?\nw ::= "
     "[a-zA-Z]+ [,;]?",
     "", "12. some words, here.\n", "3. a\n", 0},
    {"chess",
     "root ::= n \". \" move \" \" move \"\\n\" (n \". \" move (\" \" move)? \"\\n\")*\n"
     "n ::= [1-9] [0-9]{0,2}\nmove ::= (pawn | piece | castle) [+#]?\n"
     "piece ::= [KQRBN] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
     "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [QRBN])?\ncastle ::= \"O-O\" (\"-O\")?",
     "1. e4 e5\n", "2. Nf3 Nc6\n3. R1xa3+ exd8=Q#\n", "9. O-O-O\n", 0},
    {"select",
     "root ::= \"SELECT \" cols \" FROM \" tables (\" WHERE \" cond)? (\" ORDER BY \" "
     "name (\" ASC\" | \" DESC\")?)? (\" LIMIT \" [0-9]+)? \";\"\n"
     "cols ::= \"*\" | col (\", \" col)*\ncol ::= expr (\" AS \" name)?\n"
     "tables ::= table (\", \" table | \" JOIN \" table \" ON \" cond)*\n"
     "table ::= name (\" \" name)? | \"(\" root2 \")\"\n"
     "root2 ::= \"SELECT \" cols \" FROM \" tables (\" WHERE \" cond)?\n"
     "cond ::= both (\" OR \" both)*\nboth ::= test (\" AND \" test)*\n"
     "test ::= expr (\" = \" | \" < \" | \" LIKE \") expr | \"(\" cond \")\" | \"NOT \" "
     "test | expr \" IN (\" root2 \")\"\n"
     "expr ::= name (\".\" name)? | [0-9]+ | \"'\" ([^'] | \"''\")* \"'\" | name \"(\" "
     "cols \")\"\nname ::= [a-z_]+",
     "SELECT a, count(b) AS n FROM t x JOIN u ON x.a = u.b WHERE x.a = 1",
     " AND (NOT b LIKE 'it''s' OR c IN (SELECT * FROM t WHERE x < 2))", " ORDER BY n DESC;", 0},
    {"sentences",
     "root ::= (sentence \" \")* sentence\n"
     "sentence ::= (adverb \" \")? subject \" \" verb (\" \" object)? (\" \" place)* (\" \" "
     "adverb)? (\" and \" sentence | \".\")\n"
     "subject ::= np\nobject ::= np\nnp ::= (det \" \")? (adj \" \")* noun (\" \" place)*\n"
     "place ::= (\"in \" | \"on \" | \"with \") np\ndet ::= \"the\" | \"a\"\n"
     "adj ::= \"old\" | \"light\" | \"small\"\nadverb ::= \"often\" | \"now\"\n"
     "noun ::= \"man\" | \"light\" | \"boats\" | \"old\" | \"house\"\nverb ::= \"sees\" | "
     "\"light\" | \"boats\"",
     "", "now the old man boats the light in a house. often light light light and a man sees. ",
     "a man sees.", 0},
    {"sentences, places behind each other",
     "root ::= s \".\"\ns ::= np \" sees \" np\nnp ::= \"the \" noun (\" in \" np)?\nnoun ::= "
     "[a-z]+",
     "the man", " in the man", " sees the light.", 0},
    {"CSV",
     "root ::= row+\nrow ::= cell (\",\" cell)* \"\\r\"? \"\\n\"\n"
     "cell ::= [^\",\\r\\n]* | \"\\\"\" ([^\"] | \"\\\"\\\"\")* \"\\\"\"",
     "", "a,,\"b,\"\"c\n\"\"\",12\n", "x\n", 0},
    {"Markdown",
     "root ::= block+\nblock ::= head | item | para | \"\\n\" | code\n"
     "head ::= \"#\"{1,6} \" \" text \"\\n\"\nitem ::= \" \"{0,8} ([-*] | [0-9]+ \".\") "
     "\" \" text \"\\n\"\npara ::= text \"\\n\"\n"
     "text ::= span+\nspan ::= plain | \"**\" plain+ \"**\" | \"*\" plain+ \"*\" | "
     "\"`\" [^`\\n]+ \"`\" | \"[\" plain+ \"](\" [^)\\n]+ \")\"\nplain ::= "
     "[a-zA-Z ,.:]\n"
     "code ::= \"```\" [a-z]* \"\\n\" ([^`\\n]* \"\\n\")* \"```\\n\"",
     "", "# a **b** c\n  - one *two* `x`\n  1. [t](u)\n\nsome text.\n```py\nx = 1\n```\n", "a\n",
     0},
    {"Python literals",
     "root ::= value\nvalue ::= ws (num | str | \"None\" | \"True\" | \"False\" | list | tuple | "
     "dict | set) ws\nnum ::= \"-\"? [0-9]+ (\".\" [0-9]*)? ([eE] \"-\"? [0-9]+)? | \"-\"? \".\" "
     "[0-9]+\nstr ::= \"'\" ([^'\\\\\\n] | \"\\\\\" [^\\n])* \"'\" | \"\\\"\" ([^\"\\\\\\n] | "
     "\"\\\\\" [^\\n])* \"\\\"\"\n"
     "list ::= \"[\" (value (\",\" value)* (\",\" ws)? | ws) \"]\"\n"
     "tuple ::= \"(\" (value \",\" (value (\",\" value)* (\",\" ws)?)? | ws) \")\"\n"
     "dict ::= \"{\" (pair (\",\" pair)* (\",\" ws)? | ws) \"}\"\npair ::= value \":\" value\n"
     "set ::= \"{\" value (\",\" value)* (\",\" ws)? \"}\"\nws ::= [ \\n]*",
     "[", "{'a': (1, 2.), \"b\\\"\": [None, ], },\n {1, -.5} , (), ", "]", 0},
    {"Python literals, nested",
     "root ::= v\nv ::= w (\"(\" (v (\",\" v)* \",\"?)? w \")\" | \"[\" "
     "(v (\",\" v)*)? w \"]\" | [0-9]+) w\nw ::= \" \"*",
     "", "( [1, ", "", 0},
    {"calls",
     "root ::= call (\"\\n\" call)*\ncall ::= name \"(\" (arg (\", \" arg)*)? \")\"\n"
     "arg ::= (name \"=\")? value\nvalue ::= name | call | [0-9]+ | \"\\\"\" [^\"]* "
     "\"\\\"\" | \"[\" (value (\", \" value)*)? \"]\"\nname ::= [a-z_]+",
     "f()", "\nset(a=1, b=[x, \"y z\"], g(h()), c)", "", 0},
    {"markup",
     "root ::= e\ne ::= \"<\" n (\" \" n \"=\\\"\" [^\"<]* \"\\\"\")* (\"/>\" | \">\" (e | "
     "t)* \"</\" n \">\")\nn ::= [a-z]+\nt ::= [^<]+",
     "<a>", "<b c=\"d\">text <i>more</i> here</b><br/> ", "</a>", 0},
    {"dates and units",
     "root ::= (entry \"\\n\")+\nentry ::= date \" \" [0-9]+ (\".\" [0-9]+)? \" "
     "\"? unit\ndate ::= [0-9]{4} \"-\" [01]? [0-9] \"-\" [0-3]? [0-9]\n"
     "unit ::= \"m\" | \"mm\" | \"km\" | \"min\" | \"m/s\"",
     "", "2024-1-01 12.5km\n", "2024-01-1 1 m/s\n", 0},
    {"reasoning, then an answer",
     "root ::= \"<think>\" ([^<] | \"<\" [^/])* \"</think>\" ws (\"yes\" | \"no\" | number)\n"
     "number ::= [0-9]+ (\",\" [0-9]{3})*\nws ::= [ \\n]*",
     "<think>", "a < b, so <b is it> and", "</think>\nyes", 0},
    {"roman numerals, all optional",
     "root ::= n (\" \" n)*\nn ::= m? c? x? i?\nm ::= \"M\"{1,3}\nc ::= \"CM\" | \"CD\" | \"D\"? "
     "\"C\"{0,3}\nx ::= \"XC\" | \"XL\" | \"L\"? \"X\"{0,3}\ni ::= \"IX\" | \"IV\" | \"V\"? "
     "\"I\"{0,3}",
     "I", " MCMXCIV XL", "", 0},
    {"logic",
     "root ::= f\nf ::= imp\nimp ::= or (\" -> \" imp)?\nor ::= and (\" | \" and)*\nand ::= "
     "not (\" & \" not)*\nnot ::= \"~\" not | [A-Z] | \"(\" f \")\" | (\"all \" | \"some "
     "\") [a-z] \". \" f",
     "A", " & (B | ~~C -> D) | E -> all x. F", "", 300},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
enum {
    TEXT = 2000,
    COMPILE = 1 << 22, /* steps; the search for what grows may take half */
    BYTE = 1 << 13,    /* of accepting one */
    MASK = 1 << 17     /* of any mask: what a step of a server leaves by itself */
};

/* Every byte, every two printable ones, and words. */
static struct vocab *open_words(void)
{
    static const char *const words[] = {
        "if (",  "else ",  "return ",  "while",    "SELECT ", " FROM ", " WHERE ",
        "the ",  "light",  " and ",    "null",     "true",    "false",  "None",
        "\": ",  "\", \"", "    ",     "\n    ",   "</",      "]}],",   "}}}}",
        "((((",  "))))",   "[[[[",     "]]]]",     ", , ,",   "```\n",  "if x f",
        "x; el", " = 1; ", "aaaaaaaa", "12345678", "        "};
    enum { N_WORDS = sizeof words / sizeof *words, PAIRS = 95 * 95, N = 1 + 256 + PAIRS + N_WORDS };
    struct keys k = {0};
    key_str(&k, "tokenizer.ggml.model", "rwkv");
    put_array(&k.body, "tokenizer.ggml.tokens", GGUF_STR, N);
    put_text(&k.body, "<end>");
    for (int i = 0; i < 256; i++) {
        char one[8];
        snprintf(one, sizeof one, i >= 32 && i < 127 && i != '\\' ? "%c" : "\\x%02x", i);
        put_text(&k.body, one);
    }
    for (int i = 0; i < PAIRS; i++) {
        char two[8] = {0}, *p = two;
        for (int half = 0; half < 2; half++) {
            char c = (char)(32 + (half ? i % 95 : i / 95));
            if (c == '\\')
                *p++ = '\\';
            *p++ = c;
        }
        put_text(&k.body, two);
    }
    for (int i = 0; i < N_WORDS; i++)
        put_text(&k.body, words[i]);
    return open_plain(&k, N);
}

static void put_loops(struct str *s, const struct shape *v)
{
    str_putz(s, v->begin);
    while (s->n < (v->n ? v->n : TEXT))
        str_putz(s, v->loop);
    str_putz(s, v->end);
}

struct worst {
    uint64_t byte, mask, masks;
};

/* Byte by byte, with the mask behind each. 0: it is not read. */
static int walk(const struct shape *v, struct pith_grammar *g, const struct str *s,
                struct worst *out)
{
    struct pith_error err = {0};
    for (size_t i = 0; i < s->n; i++) {
        struct pith_work w = PITH_WORK_INIT, m = PITH_WORK_INIT;
        pith_work_begin(&w, NULL);
        pith_status st = grammar_accept_text(g, (struct slice){s->p + i, 1}, &err);
        pith_work_end(&w);
        CHECK_MSG(st == PITH_OK, "%s, behind %.*s: %s", v->name, (int)(i > 60 ? 60 : i),
                  s->p + (i > 60 ? i - 60 : 0), err.msg);
        if (st != PITH_OK)
            return 0;
        pith_work_begin(&m, NULL);
        const uint64_t *mask = grammar_mask(g, &err);
        pith_work_end(&m);
        CHECK_MSG(mask != NULL, "%s, byte %zu: %s", v->name, i, err.msg);
        if (!mask)
            return 0;
        if (i + 1 < s->n) {
            uint32_t next = 1 + (uint8_t)s->p[i + 1];
            CHECK_MSG(mask[next / 64] >> (next % 64) & 1, "%s, byte %zu", v->name, i);
        }
        out->byte = w.steps > out->byte ? w.steps : out->byte;
        out->mask = m.steps > out->mask ? m.steps : out->mask;
        out->masks += m.steps;
    }
    return 1;
}

static void shapes_are_taken_and_cheap(void)
{
    struct vocab *v = open_words();
    struct trie *t = v ? trie_new(v, NULL) : NULL;
    REQUIRE(t, "no vocabulary");
    for (int i = 0; i < N_SHAPES; i++) {
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        struct worst worst = {0};
        struct str s;
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                    .text = slice_of(shapes[i].grammar),
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = -1,
                                    .cache_bytes = 16 << 20};
        str_init(&s, PITH_MEM_SCRATCH);
        put_loops(&s, &shapes[i]);
        pith_work_begin(&w, NULL);
        struct pith_grammar *g = grammar_new(&spec, &err);
        pith_work_end(&w);
        CHECK_MSG(g != NULL, "%s: %s", shapes[i].name, err.msg);
        if (g && walk(&shapes[i], g, &s, &worst)) {
            CHECK_MSG(w.steps < COMPILE, "%s: %" PRIu64 " steps", shapes[i].name, w.steps);
            CHECK_MSG(worst.byte < BYTE, "%s: a byte takes %" PRIu64 " steps", shapes[i].name,
                      worst.byte);
            CHECK_MSG(worst.mask < MASK && worst.masks / s.n < MASK / 8,
                      "%s: a mask takes %" PRIu64 " steps, %" PRIu64 " on average", shapes[i].name,
                      worst.mask, worst.masks / s.n);
        }
        printf("# %s: %" PRIu64 " steps to compile, at most %" PRIu64 " a byte, %" PRIu64
               " a mask, %" PRIu64 " on average\n",
               shapes[i].name, w.steps, worst.byte, worst.mask, worst.masks / s.n);
        grammar_free(g);
        str_deinit(&s);
    }
    trie_free(t);
    vocab_free(v);
}

int main(void)
{
    TEST(shapes_are_taken_and_cheap);
    return test_end();
}
