/* fuzz_jinja.c -- a template and its variables: the text up to the first NUL byte, and the rest as JSON; without one, a fixed
 * conversation. Whatever compiles must render or fail with a message, twice the same, within small limits. */
#include "fuzz.h"
#include "text/jinja.h"

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be \\u00e9\"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"hi\"}]}, {\"role\": \"assistant\", "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, null, "
    "true]}}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
    "\"parameters\": {\"x\": {}}}}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", "
    "\"now\": \"2026-11-21T10:11:12\", \"x\": [3, 1, 2], \"y\": \"a b\", \"n\": 7, \"f\": 0.5}";

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
