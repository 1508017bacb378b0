/* fuzz_jinja.c -- a template and its variables: the text up to the first NUL byte, and the rest as
 * JSON; without one, a fixed conversation. Whatever compiles must render or fail with a message,
 * twice the same, within small limits; and where its text comes from is told by parts of it that
 * are apart, in order, and hold every sign (U+E000) that only values have. */
#include "fuzz.h"
#include "text/jinja/jinja.h"

#define SIGN "\xEE\x80\x80"
static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be \\u00e9" SIGN
    "\"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"hi\"}]}, {\"role\": \"assistant\", "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, null, "
    "true]}}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
    "\"parameters\": {\"x\": {}}}}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", "
    "\"now\": \"2026-11-21T10:11:12\", \"x\": [3, 1, 2], \"y\": \"" SIGN "a b" SIGN "\", "
    "\"n\": 7, \"f\": 0.5}";

/* Whether a text can have signs of its own: as they are, or as an escape. */
static int has_sign(const char *p, size_t n)
{
    return memmem(p, n, SIGN, 3) || memmem(p, n, "e000", 4) || memmem(p, n, "E000", 4);
}

/* The same text with its values; none where a value is used as a format. */
static void check_values(const struct jinja *t, struct slice json,
                         const struct jinja_limits *limits, const struct str *plain, int signs)
{
    struct pith_error err;
    struct spans values = {0};
    struct str out;
    str_init(&out, PITH_MEM_SCRATCH);
    str_putz(&out, "before");
    if (jinja_render_marked(t, json.p, json.n, limits, &out, &values, &err) != PITH_OK) {
        require(out.n == 6 && err.code != PITH_OK && err.msg[0]);
    } else {
        require(out.n == plain->n + 6);
        size_t least = 6;
        for (size_t i = 0; i < values.n; i++) {
            const struct pith_span *s = &values.v[i];
            require(s->from >= least && s->from < s->to && s->to <= out.n);
            least = s->to + 1;
        }
        for (size_t i = 6; signs && i + 3 <= out.n; i++) {
            int is_sign = !memcmp(out.p + i, SIGN, 3);
            for (size_t k = i; is_sign && k < i + 3; k++)
                require(spans_touch(&values, k, k + 1));
        }
    }
    spans_deinit(&values);
    str_deinit(&out);
}

static void run(const uint8_t *data, size_t size)
{
    static const struct jinja_limits limits = {20000, 16 << 20, 1 << 20};
    struct pith_error err;
    const char *text = (const char *)data, *end = size ? memchr(text, 0, size) : NULL;
    size_t n = end ? (size_t)(end - text) : size;
    const char *json = end ? end + 1 : conversation;
    size_t n_json = end ? size - n - 1 : sizeof conversation - 1;
    struct jinja *t = jinja_new(text, n, &err);
    struct str out[2];
    require(t || (err.code != PITH_OK && err.msg[0]));
    for (int i = 0; i < 2; i++) {
        str_init(&out[i], PITH_MEM_SCRATCH);
        if (t && jinja_render(t, json, n_json, &limits, &out[i], &err) != PITH_OK)
            require(out[i].n == 0 && err.code != PITH_OK);
    }
    if (t)
        check_values(t, (struct slice){json, n_json}, &limits, &out[0], !end && !has_sign(text, n));
    /* without "now" the clock shows */
    require(out[0].n == out[1].n && (end || !out[0].n || !memcmp(out[0].p, out[1].p, out[0].n)));
    str_deinit(&out[0]);
    str_deinit(&out[1]);
    jinja_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    on_small_stack(run, data, size);
    return 0;
}
