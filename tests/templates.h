/* templates.h -- the published templates among the shared data, and the markers that they spell. */
#ifndef PITH_TESTS_TEMPLATES_H
#define PITH_TESTS_TEMPLATES_H

#include <dirent.h>
#include <jansson.h>

#include "test.h"

enum { MOST_MARKERS = 4096 };
struct markers {
    char text[MOST_MARKERS][48];
    int n;
};

static void add_marker(struct markers *m, const char *p, size_t n)
{
    for (int i = 0; i < m->n; i++)
        if (strlen(m->text[i]) == n && !memcmp(m->text[i], p, n))
            return;
    if (m->n == MOST_MARKERS || n >= sizeof m->text[0])
        return;
    memcpy(m->text[m->n], p, n);
    m->text[m->n++][n] = 0;
}

/* Those that no shared template spells, and some published one does. */
static const char *const other_markers[] = {
    "]<]minimax[>[", "]~b]",  "]~!b[",    "[e~[",        "<|eot_id|>",
    "<|endoftext|>", "<s>",   "<bos>",    "<|\"|>",      "◁think▷",
    "◁/think▷",      "[INST]", "<unused0>", "<｜begin▁of▁sentence｜>"};
enum { N_OTHER_MARKERS = sizeof other_markers / sizeof *other_markers };

/* All that stands in pointed brackets without white space, and a word with capitals in square ones
 * ("[gMASK]"). */
static void find_markers(struct markers *m, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = i + 1;
        int n_capitals = 0;
        if (text[i] == '<')
            while (k < n && k - i < 32 && !strchr(" \t\n<>'\"{}()\\,;=", text[k]))
                k++;
        else if (text[i] == '[')
            for (; k < n && k - i < 32 && text[k] &&
                   strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/", text[k]);
                 k++)
                n_capitals += text[k] >= 'A' && text[k] <= 'Z';
        else
            continue;
        if (k < n && k - i > 2 && text[k] == (text[i] == '<' ? '>' : ']') &&
            (text[i] == '<' || n_capitals > 1))
            add_marker(m, text + i, k + 1 - i);
    }
}

static json_t *read_json(const char *path)
{
    size_t n;
    char *text = test_read(path, &n);
    json_t *j = text ? json_loadb(text, n, JSON_ALLOW_NUL, NULL) : NULL;
    free(text);
    return j;
}

/* Each with its recorded cases, an array, NULL where there are none. */
static void each_template(void (*take)(const char *file, const char *text, size_t n,
                                       const json_t *cases))
{
    char dir[512], path[1024];
    snprintf(dir, sizeof dir, "%s/vectors/templates", test_shared());
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name), n_text;
        if (n < 6 || strcmp(e->d_name + n - 6, ".jinja"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        char *text = test_read(path, &n_text);
        snprintf(path, sizeof path, "%s/%.*s.cases.json", dir, (int)n - 6, e->d_name);
        json_t *cases = text ? read_json(path) : NULL;
        if (text)
            take(e->d_name, text, n_text, cases);
        json_decref(cases);
        free(text);
    }
    if (d)
        closedir(d);
}

#endif
