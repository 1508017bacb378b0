/* names.c -- see names.h. Nothing here looks at the network or at files. */
#include "cli/models/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"

/* ---------------------------------------------------------------- texts */

int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcasecmp(text + n - m, end);
}

void say_bytes(int64_t bytes, char *out, size_t cap)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1024 && u < 4; u++)
        v /= 1024;
    snprintf(out, cap, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

/* Letters, digits, "-", "_" and "."; not "." or ".." alone. */
static int is_word(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == '.'))
            return 0;
    }
    return n > 0 && !(n <= 2 && !memcmp(p, "..", n));
}

/* Words with slashes between them, as many as allowed. */
static int is_words(const char *p, int least, int most)
{
    int n = 1;
    for (size_t len; len = strcspn(p, "/"), is_word(p, len); p += len + 1, n++) {
        if (!p[len])
            return n >= least && n <= most;
    }
    return 0;
}

int path_is_plain(const char *path)
{
    for (const char *p = path; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F || *p == '\\')
            return 0;
    }
    for (const char *p = path;; p++) {
        size_t n = strcspn(p, "/");
        if (!n || (n <= 2 && !memcmp(p, "..", n)))
            return 0;
        p += n;
        if (!*p)
            return 1;
    }
}

/* ---------------------------------------------------------------- addresses */

static void from_env(const char *name, const char *dflt, char *out, size_t cap)
{
    const char *env = getenv(name);
    if (snprintf(out, cap, "%s", env && *env ? env : dflt) >= (int)cap)
        *out = 0; /* no address */
    for (size_t n = strlen(out); n && out[n - 1] == '/';)
        out[--n] = 0;
}

void ref_hub(char *out, size_t cap)
{
    from_env("HF_ENDPOINT", "https://huggingface.co", out, cap);
}

void ref_registry(char *out, size_t cap)
{
    from_env("PITH_OLLAMA_REGISTRY", "https://registry.ollama.ai", out, cap);
}

int url_is_loopback(const char *url)
{
    const char *host = strstr(url, "://");
    if (!host)
        return 0;
    host += 3;
    if (!strncmp(host, "[::1]", 5))
        return strchr(":/?#", host[5]) != NULL;
    size_t n = strcspn(host, ":/?#");
    if (n == 9 && !strncasecmp(host, "localhost", 9))
        return 1;
    return n >= 7 && !strncmp(host, "127.", 4) && strspn(host, "0123456789.") == n;
}

/* ---------------------------------------------------------------- references */

/* "owner/repo/resolve/REV/FILE" behind the hub's address; "blob" is the page about the file. */
static int hub_file(const char *path, struct model_ref *r)
{
    char file[512];
    char owner[128], repo[128], verb[16];
    if (sscanf(path, "/%127[^/]/%127[^/]/%15[^/]/%127[^/]/%511[^?#]", owner, repo, verb, r->rev,
               file) != 5 ||
        (strcmp(verb, "resolve") && strcmp(verb, "blob")) || strchr(file, '%') ||
        !is_word(r->rev, strlen(r->rev)) || strcmp(r->rev, "main"))
        return 0;
    snprintf(r->repo, sizeof r->repo, "%s/%s", owner, repo);
    snprintf(r->want, sizeof r->want, "%s", file);
    r->kind = REF_HF;
    return is_words(r->repo, 2, 2);
}

static int parse_url(const char *text, struct model_ref *r)
{
    char hub[512];
    const char *host = strstr(text, "://") + 3;
    size_t n = strlen(text), n_host = strcspn(host, "/?#");
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p <= 0x20 || *p == 0x7F)
            return cli_say(
                CLI_USE,
                "the address has a blank or control character in it; wanted %%20 and the like");
    }
    if (n >= sizeof r->url)
        return cli_say(CLI_USE, "an address of %zu bytes; at most %zu are wanted", n,
                       sizeof r->url - 1);
    if (memchr(host, '@', n_host))
        return cli_say(CLI_USE, "found a user or password in the address; they would be kept and "
                                "shown with it: leave them out");
    if (!strncmp(text, "http:", 5) && !url_is_loopback(text))
        return cli_say(CLI_USE, "%s: http is for this machine alone; wanted https", text);
    snprintf(r->url, sizeof r->url, "%s", text);
    r->url[strcspn(r->url, "#")] = 0;
    ref_hub(hub, sizeof hub);
    if (!strncmp(text, hub, strlen(hub)) && hub_file(text + strlen(hub), r))
        return CLI_OK;
    r->kind = REF_URL;
    char path[2048];
    if (!ref_path(r, "", path, sizeof path) || !ends_with(path, ".gguf"))
        return cli_say(CLI_USE, "%s: wanted the address of a .gguf file", text);
    return CLI_OK;
}

int ref_parse(const char *text, struct model_ref *r)
{
    *r = (struct model_ref){REF_NONE, "", "main", "", ""};
    if (!strncmp(text, "https://", 8) || !strncmp(text, "http://", 7))
        return parse_url(text, r);
    int is_hf = !strncmp(text, "hf:", 3);
    if (!is_hf && strncmp(text, "ollama:", 7))
        return CLI_OK;
    const char *name = strchr(text, ':') + 1;
    size_t n = strcspn(name, ":");
    const char *want = name[n] ? name + n + 1 : "";
    if (n < sizeof r->repo)
        snprintf(r->repo, sizeof r->repo, "%.*s", (int)n, name);
    int good = strlen(want) < sizeof r->want && (name[n] ? *want != 0 : 1);
    if (is_hf && !(good && is_words(r->repo, 2, 2) && (!*want || path_is_plain(want))))
        return cli_say(
            CLI_USE, "%s: wanted hf:OWNER/REPO, or hf:OWNER/REPO:Q4_K_M (a quantization or a file)",
            text);
    if (!is_hf && !(good && is_words(r->repo, 1, 2) && (!*want || is_words(want, 1, 1))))
        return cli_say(CLI_USE, "%s: wanted ollama:NAME or ollama:NAME:TAG", text);
    r->kind = is_hf ? REF_HF : REF_OLLAMA;
    snprintf(r->want, sizeof r->want, "%s", *want || is_hf ? want : "latest");
    return CLI_OK;
}

/* Takes the query off an address; files that differ in it alone lie in folders of their own:
 * ".../c.gguf?x=1" becomes ".../q_0123456789abcdef/c.gguf". */
static int put_query(char *url, size_t cap)
{
    char *query = strchr(url, '?'), folder[24];
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    url[strcspn(url, "#")] = 0;
    if (!query || !query[1]) {
        url[strcspn(url, "?")] = 0;
        return 1;
    }
    for (const char *p = query + 1; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    *query = 0;
    int n = snprintf(folder, sizeof folder, "q_%016llx/", (unsigned long long)h);
    char *base = strrchr(url, '/');
    if (!base || strlen(url) + (size_t)n >= cap)
        return 0;
    base++;
    memmove(base + n, base, strlen(base) + 1);
    memcpy(base, folder, (size_t)n);
    return 1;
}

int ref_path(const struct model_ref *r, const char *file, char *out, size_t cap)
{
    int n;
    const char *slash = strrchr(r->repo, '/');
    switch (r->kind) {
    case REF_HF:
        n = snprintf(out, cap, "hf/%s/%s", r->repo, file);
        break;
    case REF_OLLAMA:
        n = snprintf(out, cap, "ollama/%s/%s-%s.gguf", r->repo, slash ? slash + 1 : r->repo,
                     r->want);
        break;
    default:
        n = snprintf(out, cap, "%s", r->url);
        if (n >= 0 && (size_t)n < cap && !put_query(out, cap))
            return 0;
        /* "https://host:1/a%20b" becomes "https/host_1/a_20b" */
        char *colon = strstr(out, "://");
        if (!colon)
            return 0;
        memmove(colon, colon + 2, strlen(colon + 2) + 1);
        for (char *p = out; *p; p++) {
            if (*p != '/' && !is_word(p, 1) && *p != '.')
                *p = '_';
        }
    }
    return n > 0 && (size_t)n < cap && path_is_plain(out);
}

void ref_source(const char *path, char *out, size_t cap)
{
    char kind[16], a[128], b[128], c[512];
    int n = sscanf(path, "%15[^/]/%127[^/]/%127[^/]/%511[^\n]", kind, a, b, c);
    *out = 0;
    if (n == 4 && !strcmp(kind, "hf")) {
        snprintf(out, cap, "hf:%s/%s", a, b);
    } else if (n >= 3 && !strcmp(kind, "ollama")) {
        /* name/name-tag.gguf, space/name/name-tag.gguf */
        const char *name = n == 4 ? b : a, *file = n == 4 ? c : b;
        size_t len = strlen(name), end = strlen(file);
        if (!strncmp(file, name, len) && file[len] == '-' && ends_with(file, ".gguf"))
            snprintf(out, cap, "ollama:%s%s%s:%.*s", n == 4 ? a : "", n == 4 ? "/" : "", name,
                     (int)(end - 5 - len - 1), file + len + 1);
    } else if (n >= 3 && (!strcmp(kind, "https") || !strcmp(kind, "http"))) {
        snprintf(out, cap, "%s:/%s", kind, path + strlen(kind));
    }
}

void ref_name(const struct model_ref *r, char *out, size_t cap)
{
    if (r->kind == REF_URL)
        snprintf(out, cap, "%s", r->url);
    else
        snprintf(out, cap, r->kind == REF_HF ? "hf:%s" : "ollama:%s:%s", r->repo, r->want);
}

/* ---------------------------------------------------------------- what files' names say */

size_t file_stem(const char *path, int *part, int *n_parts)
{
    size_t n = strlen(path);
    int end = 0;
    *part = *n_parts = 1;
    if (!ends_with(path, ".gguf"))
        return 0;
    n -= 5;
    if (n > 15 && sscanf(path + n - 15, "-%5d-of-%5d.%n", part, n_parts, &end) == 2 && end == 16 &&
        *part >= 1 && *part <= *n_parts)
        return n - 15;
    *part = *n_parts = 1;
    return n;
}

/* Is p[0..n) the name of a weight type or a mixture of them: Q4_0, IQ2_XXS, TQ1_0, BF16, F32,
 * MXFP4? */
static int is_quant(const char *p, size_t n)
{
    static const char *const starts[] = {"IQ", "TQ", "Q", "BF", "FP", "F", "MXFP", "NVFP"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        size_t m = strlen(starts[i]), digits = m;
        if (n <= m || strncasecmp(p, starts[i], m))
            continue;
        while (digits < n && p[digits] >= '0' && p[digits] <= '9')
            digits++;
        if (digits == m || digits > m + 2 || (digits < n && p[digits] != '_'))
            continue;
        size_t k = digits;
        while (k < n && p[k] != '-' && p[k] != '.')
            k++;
        return k == n;
    }
    return 0;
}

void file_quant(const char *path, char *out, size_t cap)
{
    int part, n_parts;
    size_t n = file_stem(path, &part, &n_parts);
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if ((i && !strchr("-._/", path[i - 1])) || !is_quant(path + i, n - i))
            continue;
        size_t from = i >= 4 && !strncasecmp(path + i - 3, "UD-", 3) && strchr("-._/", path[i - 4])
                          ? i - 3
                          : i;
        snprintf(out, cap, "%.*s", (int)(n - from), path + from);
        for (char *p = out; *p; p++)
            *p = (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
        if (!strncmp(out, "FP16", 4) || !strncmp(out, "FP32", 4))
            memmove(out + 1, out + 2, strlen(out + 2) + 1);
        return;
    }
}

/* A file that can be run: not a projector of images, a matrix of importances or a vocabulary, and
 * of split ones the first. */
static int is_model(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    int part, n_parts;
    return file_stem(path, &part, &n_parts) && part == 1 && !strcasestr(base, "mmproj") &&
           !strcasestr(base, "imatrix") && !strcasestr(base, "ggml-vocab");
}

enum { PICK_NONE = -1, PICK_SEVERAL = -2 };

/* The only model whose file is called `want`, or whose quantization it is; any for NULL. */
static int only(const char *want, int by_quant, const struct pick_file *files, size_t n)
{
    int found = PICK_NONE;
    for (size_t i = 0; i < n; i++) {
        char quant[64];
        const char *path = files[i].path, *slash = strrchr(path, '/');
        file_quant(path, quant, sizeof quant);
        if (by_quant || !want ? !is_model(path) || (want && strcasecmp(quant, want))
                              : !ends_with(path, ".gguf") ||
                                    (strcmp(path, want) && strcmp(slash ? slash + 1 : path, want)))
            continue;
        found = found == PICK_NONE ? (int)i : PICK_SEVERAL;
    }
    return found;
}

int file_pick_quiet(const char *want, const struct pick_file *files, size_t n)
{
    /* What most people want of a model first: small and nearly as good; then what is nearest to it.
     */
    static const char *const usual[] = {"Q4_K_M", "Q8_0",   "Q5_K_M", "Q6_K", "Q4_K_S", "Q4_0",
                                        "Q5_K_S", "IQ4_NL", "MXFP4",  "BF16", "F16",    "F32"};
    if (*want) {
        int i = only(want, 0, files, n);
        return i == PICK_NONE ? only(want, 1, files, n) : i;
    }
    int i = only(NULL, 0, files, n);
    for (size_t k = 0; i == PICK_SEVERAL && k < sizeof usual / sizeof usual[0]; k++) {
        int j = only(usual[k], 1, files, n);
        if (j == PICK_SEVERAL)
            return j;
        i = j >= 0 ? j : i;
    }
    return i;
}

int file_pick(const char *source, const char *want, const struct pick_file *files, size_t n)
{
    int i = file_pick_quiet(want, files, n), n_shown = 0;
    if (i >= 0)
        return i;
    if (only(NULL, 0, files, n) == PICK_NONE)
        cli_say(
            CLI_INPUT,
            "%s has no GGUF file that can be run; repositories of such files often end in -GGUF",
            source);
    else if (!*want)
        cli_say(CLI_INPUT,
                "%s has several models, and it is not clear which is meant; name a quantization or "
                "a file:",
                source);
    else
        cli_say(CLI_INPUT,
                i == PICK_SEVERAL ? "%s: %s is several files; name one:"
                                  : "%s has no %s; there is:",
                source, want);
    for (size_t k = 0; k < n && n_shown < 100; k++) {
        char quant[64], bytes[32];
        if (!is_model(files[k].path))
            continue;
        file_quant(files[k].path, quant, sizeof quant);
        say_bytes(files[k].bytes, bytes, sizeof bytes);
        cli_tell("  %-12s %-10s %s\n", *quant ? quant : "-", bytes, files[k].path);
        n_shown++;
    }
    return -1;
}
