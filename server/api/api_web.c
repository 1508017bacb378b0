/* api_web.c -- the web page: the files of server/web/, which the assembler puts into the program,
 * at / and /web/NAME.
 *
 * A file is a row of FILES. It is told apart by a hash of its bytes (ETag), and asked for again
 * each time: a newer program has newer files. The policy lets the page load what is here and
 * nothing else, and run no text as code. */
#include <stdio.h>
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/parts.h"

#define HTML "text/html; charset=utf-8"
#define CSS  "text/css; charset=utf-8"
#define JS   "text/javascript; charset=utf-8"

#define FILES(F)                                                                                   \
    F(index, "index.html", HTML)                                                                   \
    F(icon, "icon.svg", "image/svg+xml")                                                           \
    F(base_css, "base.css", CSS)                                                                   \
    F(layout_css, "layout.css", CSS)                                                               \
    F(chat_css, "chat.css", CSS)                                                                   \
    F(panels_css, "panels.css", CSS)                                                               \
    F(theme_js, "theme.js", JS)                                                                    \
    F(app_js, "app.js", JS)                                                                        \
    F(api_js, "api.js", JS)                                                                        \
    F(chat_js, "chat.js", JS)                                                                      \
    F(composer_js, "composer.js", JS)                                                              \
    F(dialogs_js, "dialogs.js", JS)                                                                \
    F(dom_js, "dom.js", JS)                                                                        \
    F(generate_js, "generate.js", JS)                                                              \
    F(highlight_js, "highlight.js", JS)                                                            \
    F(inline_js, "inline.js", JS)                                                                  \
    F(markdown_js, "markdown.js", JS)                                                              \
    F(message_js, "message.js", JS)                                                                \
    F(model_js, "model.js", JS)                                                                    \
    F(server_js, "server.js", JS)                                                                  \
    F(settings_js, "settings.js", JS)                                                              \
    F(sidebar_js, "sidebar.js", JS)                                                                \
    F(store_js, "store.js", JS)                                                                    \
    F(tree_js, "tree.js", JS)

/* Paths are from the root of the tree, where the compiler runs. */
#define BYTES(id, name, type)                                                                      \
    __asm__(".section .rodata\n"                                                                   \
            "web_" #id ": .incbin \"server/web/" name "\"\n"                                       \
            "web_" #id "_end: .byte 0\n"                                                           \
            ".previous\n");                                                                        \
    extern const char web_##id[], web_##id##_end[];
FILES(BYTES)

static const struct file {
    const char *name, *type, *p, *end;
} files[] = {
#define ROW(id, name, type) {name, type, web_##id, web_##id##_end},
    FILES(ROW)};

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
                             "'self'; connect-src 'self'; base-uri 'none'; "
                             "form-action 'none'; frame-ancestors 'none'; "
                             "require-trusted-types-for 'script'; trusted-types 'none'";

static const struct file *find(const char *path)
{
    const char *name = !strcmp(path, "/") ? "index.html" : path + strlen("/web/");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].name, name))
            return &files[i];
    return NULL;
}

/* FNV-1a of the bytes. */
static void hash(const struct file *file, char tag[24])
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = file->p; p < file->end; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    snprintf(tag, 24, "\"%016llx\"", (unsigned long long)h);
}

void api_web(struct server *s, struct exchange *x)
{
    const struct file *file = server_told(s)->no_web ? NULL : find(exchange_path(x));
    struct fault f = {0};
    char tag[24];
    if (!file) {
        fault_set(&f, 404, "not_found", NULL,
                  server_told(s)->no_web
                      ? "there is no page here: the server was started with --no-web"
                      : "there is no %.100s; the page is at /",
                  exchange_path(x));
        exchange_fault(x, &f);
        return;
    }
    hash(file, tag);
    exchange_header(x, "ETag", tag);
    exchange_header(x, "Cache-Control", "no-cache");
    exchange_header(x, "Content-Security-Policy", policy);
    exchange_header(x, "Referrer-Policy", "no-referrer");
    const char *known = exchange_asked(x, "If-None-Match");
    int same = known && strstr(known, tag);
    exchange_begin(x, same ? 304 : 200, file->type, 0, NULL);
    if (!same)
        exchange_write(x, file->p, (size_t)(file->end - file->p));
    exchange_end(x);
}
