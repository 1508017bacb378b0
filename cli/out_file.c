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

int cli_out_open(struct cli_out *w, const char *path)
{
    w->path = path;
    if (is_stdout(path) || cli_is_device(path)) {
        w->f = is_stdout(path) ? fdopen(dup(STDOUT_FILENO), "wb") : fopen(path, "wb");
        return w->f ? CLI_OK : cli_say(CLI_SYSTEM, "%s: cannot open: %s", path, strerror(errno));
    }
    if (asprintf(&w->tmp, "%s.tmp-%ld", path, (long)getpid()) < 0) {
        w->tmp = NULL;
        return cli_no_memory();
    }
    w->f = fopen(w->tmp, "wb");
    return w->f ? CLI_OK : cli_say(CLI_SYSTEM, "%s: cannot create: %s", w->tmp, strerror(errno));
}

int cli_out_close(struct cli_out *w, int code)
{
    if (w->f) {
        errno = 0;
        int bad = ferror(w->f);
        bad |= fclose(w->f) != 0;
        if (!code && (bad || (w->tmp && rename(w->tmp, w->path) != 0)))
            code = cli_say(CLI_SYSTEM, "%s: cannot write: %s", w->path,
                           errno ? strerror(errno) : "write error");
        if (code && w->tmp)
            unlink(w->tmp);
    }
    free(w->tmp);
    return code;
}
