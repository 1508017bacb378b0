/* shows.c -- what a template shows of conversations: small ones are rendered, once, while the model
 * is loaded, and their prompts searched for marks. /props tells it. */
#include <stdio.h>
#include <string.h>

#include "server/hosted.h"
#include "server/models/models_impl.h"

/* Whether a template writes both marks of a conversation. */
static int writes(const pith_template *t, const char *json, const char *mark, const char *other)
{
    struct pith_error err;
    size_t n;
    pith_prompt *p = pith_prompt_open(t, json, strlen(json), &err);
    const char *text = pith_prompt_text(p, &n);
    int found = p && strstr(text, mark) && strstr(text, other);
    pith_prompt_close(p);
    return found;
}

void shows_try(struct hosted *h)
{
    static const char system[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"MARKA\"},{"
                                 "\"role\":\"user\",\"content\":\"b\"}]}";
    static const char calls[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"\",\"tool_calls\":[{\"id\":\"call_0000\",\"type\":\"function\","
        "\"function\":{\"name\":\"MARKA\",\"arguments\":%s}}%s]}]}";
    static const char second[] = ",{\"id\":\"call_0001\",\"type\":\"function\",\"function\":{"
                                 "\"name\":\"MARKB\",\"arguments\":%s}}";
    /* Some templates want an object, others its text. */
    static const char *const arguments[] = {"{\"x\":1}", "\"{\\\"x\\\":1}\""};
    const pith_template *t = h->tool_template ? h->tool_template : h->template;
    h->shows = (struct template_shows){0};
    for (int i = 0; t && i < 2; i++) {
        char json[512], more[160];
        snprintf(more, sizeof more, second, arguments[i]);
        snprintf(json, sizeof json, calls, arguments[i], "");
        h->shows.calls |= writes(t, json, "MARKA", "");
        snprintf(json, sizeof json, calls, arguments[i], more);
        h->shows.several |= writes(t, json, "MARKA", "MARKB");
    }
    h->shows.system = t && writes(h->template ? h->template : t, system, "MARKA", "");
}
