/* out_file.c -- a result that appears when it is complete, or not at all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

static int is_stdout(const char *path)
{
    return !strcmp(path, "-");
}

int cli_out_check(const char *path)
{
    struct stat sb;
    if (is_stdout(path) && isatty(STDOUT_FILENO))
        return cli_say(CLI_USE, "- is a terminal; wanted a file or a pipe");
    if (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode))
        return cli_say(CLI_INPUT, "%s is a folder; wanted a file to write", path);
    return CLI_OK;
}

int cli_is_device(const char *path)
{
    struct stat sb;
    if (stat(path, &sb) != 0 || S_ISDIR(sb.st_mode))
        return 0;
    return !S_ISREG(sb.st_mode) || ((!strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6)) &&
                                    lstat(path, &sb) == 0 && S_ISLNK(sb.st_mode));
}

/* 0, or the errno of what failed. */
static int begin(struct cli_out *w, const char *path)
{
    *w = (struct cli_out){.path = path};
    if (is_stdout(path) || cli_is_device(path)) {
        w->f = is_stdout(path) ? fdopen(dup(STDOUT_FILENO), "wb") : fopen(path, "ab");
        return w->f ? 0 : errno;
    }
    w->target = realpath(path, NULL);
    if (!w->target)
        w->target = strdup(path);
    if (!w->target || asprintf(&w->tmp, "%s.tmp-%ld", w->target, (long)getpid()) < 0) {
        w->tmp = NULL;
        return ENOMEM;
    }
    w->f = fopen(w->tmp, "wb");
    return w->f ? 0 : errno;
}

/* Why it cannot be given its name: `why`, or the errno of what failed now. */
static int end(struct cli_out *w, int why)
{
    if (w->f) {
        errno = 0;
        int bad = ferror(w->f);
        bad |= fclose(w->f) != 0;
        if (!why && (bad || (w->tmp && rename(w->tmp, w->target) != 0)))
            why = errno ? errno : EIO;
        if (why && w->tmp)
            unlink(w->tmp);
    }
    free(w->tmp);
    free(w->target);
    return why;
}

int cli_out_open(struct cli_out *w, const char *path)
{
    int why = begin(w, path);
    return why == ENOMEM ? cli_no_memory()
           : why
               ? cli_say(CLI_SYSTEM, "%s: cannot create: %s", w->tmp ? w->tmp : path, strerror(why))
               : CLI_OK;
}

int cli_out_close(struct cli_out *w, int code)
{
    int opened = w->f != NULL, why = end(w, code ? ECANCELED : 0);
    return opened && why && !code
               ? cli_say(CLI_SYSTEM, "%s: cannot write: %s", w->path, strerror(why))
               : code;
}

int cli_replace_file(const char *path, const char *text)
{
    struct cli_out out;
    int why = begin(&out, path);
    if (!why && fputs(text, out.f) < 0)
        why = errno;
    return end(&out, why);
}
