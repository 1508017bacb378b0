/* common.c -- messages, exit codes, and small conversions that several commands need. */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- messages */

/* The one place where a status becomes an exit code. */
static int exit_code(pith_status st)
{
    switch (st) {
    case PITH_OK:
        return CLI_OK;
    case PITH_FORMAT:
    case PITH_MISSING:
    case PITH_SHAPE:
    case PITH_UNSUPPORTED:
    case PITH_RANGE:
        return CLI_INPUT;
    case PITH_CANCELLED:
        return CLI_INTERRUPTED;
    case PITH_NOMEM:
    case PITH_IO:
    case PITH_STATE:
    case PITH_DEVICE:
    case PITH_INTERNAL:
        break;
    }
    return CLI_SYSTEM;
}

/* Bytes of a control character at p, 0: it is none, or a harmless one. */
static size_t control(const char *p, size_t n)
{
    unsigned char c = (unsigned char)p[0], next = n > 1 ? (unsigned char)p[1] : 0;
    if (c == 0xC2 && next >= 0x80 && next < 0xA0)
        return 2;
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
}

size_t cli_visible(const char *p, size_t n, size_t *plain, char shown[2])
{
    for (size_t i = 0, len; i < n; i++) {
        len = control(p + i, n - i);
        if (len) {
            *plain = i;
            shown[0] = '^';
            shown[1] = (char)((p[i + len - 1] & 0x1F) | 0x40);
            if (p[i] == 0x7F)
                shown[1] = '?';
            return i + len;
        }
    }
    *plain = n;
    return n;
}

static _Atomic(char) text_end; /* the last byte of text on stdout */

int cli_write_text(int fd, int is_terminal, const char *p, size_t n)
{
    int why = 0;
    if (fd == STDOUT_FILENO && n > 0)
        text_end = p[n - 1];
    while (n > 0 && !why) {
        char shown[2];
        size_t plain = n, used = is_terminal ? cli_visible(p, n, &plain, shown) : n;
        why = cli_write_all(fd, p, plain);
        if (!why && used > plain)
            why = cli_write_all(fd, shown, sizeof shown);
        p += used;
        n -= used;
    }
    return why;
}

static ssize_t guarded(void *fd, const char *p, size_t n)
{
    int why = cli_write_text((int)(intptr_t)fd, 1, p, n);
    errno = why;
    return why ? 0 : (ssize_t)n;
}

void cli_guard(FILE **stream)
{
    int fd = fileno(*stream);
    cookie_io_functions_t io = {.write = guarded};
    FILE *f = isatty(fd) ? fopencookie((void *)(intptr_t)fd, "w", io) : NULL;
    if (!f)
        return;
    setvbuf(f, NULL, _IOLBF, BUFSIZ);
    *stream = f;
}

void cli_tell(const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    fflush(stderr);
    cli_write_text(STDERR_FILENO, isatty(STDERR_FILENO), text, (size_t)n);
    free(text);
}

void cli_draw(const char *text, const char *brief)
{
    struct winsize size = {0};
    size_t most = SIZE_MAX; /* a terminal that does not know how wide it is */
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
        most = size.ws_col - 1u; /* the last column may begin a new line */
    if (strlen(text) > most)
        text = brief;
    size_t n = strlen(text);
    n = n < most ? n : most;
    while (n && ((unsigned char)text[n] & 0xC0) == 0x80) /* whole characters */
        n--;
    fprintf(stderr, "\r%.*s\033[K", (int)n, text);
}

/* Would a message stand in the line of the text? Not twice: the message ends it. At a terminal
 * whoever shows the text ends its line. */
static int on_a_text(void)
{
    struct stat out, err;
    char end = atomic_exchange(&text_end, 0); /* servers load models in a thread of their own */
    int open = end && end != '\n' && !isatty(STDOUT_FILENO) && !fstat(STDOUT_FILENO, &out) &&
               !fstat(STDERR_FILENO, &err) && out.st_dev == err.st_dev && out.st_ino == err.st_ino;
    return open;
}

int cli_say(int code, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    cli_tell("%spith: %s\n", on_a_text() ? "\n" : "", n >= 0 ? text : fmt);
    if (n >= 0)
        free(text);
    return code;
}

int cli_fail(const struct pith_error *err)
{
    if (err->code == PITH_CANCELLED && interrupt_asked())
        return cli_say(CLI_INTERRUPTED, "interrupted");
    /* the library does not know which flags these are */
    const char *both =
        strstr(err->msg, "; open the session with a larger context or ask for a context shift");
    if (both)
        return cli_say(exit_code(err->code),
                       "%.*s; -c makes it larger, --context-shift drops the oldest tokens",
                       (int)(both - err->msg), err->msg);
    const char *flag = strstr(err->msg, "with a larger context") ? "; -c sets its size" : "";
    return cli_say(exit_code(err->code), "%s%s", err->msg, flag);
}

int cli_fail_file(const char *path, const struct pith_error *err)
{
    struct stat sb;
    int code = cli_fail(err);
    return code == CLI_SYSTEM && stat(path, &sb) == 0 && !S_ISREG(sb.st_mode) ? CLI_INPUT : code;
}

void cli_file_text(const pith_file *f, const char *key, char *out, size_t cap)
{
    for (int64_t i = 0; i < pith_file_n_keys(f); i++)
        if (!strcmp(pith_file_key(f, i), key))
            pith_file_value(f, i, 1, out, cap);
}

int cli_no_memory(void)
{
    return cli_say(CLI_SYSTEM, "out of memory");
}

int cli_unknown_arch(const char *name)
{
    const char *const *known = pith_arch_names(), *near = args_nearest(name, known);
    fprintf(stderr, "pith: unknown architecture \"%s\"; ", name);
    if (near)
        fprintf(stderr, "did you mean %s? ", near);
    fputs("Known are", stderr);
    for (int i = 0; known[i]; i++)
        fprintf(stderr, "%s %s", i ? "," : "", known[i]);
    fputc('\n', stderr);
    return CLI_INPUT;
}

int cli_finish(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    int why = errno;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (!why && poll(&out, 1, 0) > 0 && out.revents & POLLERR) /* a write before this one failed */
        why = EPIPE;
    if (why == EPIPE)
        return code;
    cli_say(CLI_SYSTEM, "cannot write to stdout: %s", why ? strerror(why) : "write error");
    return code ? code : CLI_SYSTEM;
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* all: what there was to do, if not all of it is done. */
static void timing(const char *what, int64_t n, int64_t all, int64_t ns)
{
    double seconds = 1e-9 * (double)ns;
    char of[32] = "";
    if (n < all)
        snprintf(of, sizeof of, " of %lld", (long long)all);
    fprintf(stderr, "%s: %lld%s tokens in %.3f s", what, (long long)n, of, seconds);
    if (seconds > 0 && n > 0)
        fprintf(stderr, " (%.1f tokens/s)", (double)n / seconds);
}

void cli_timings(const pith_session *s, const struct pith_generate_result *r, int64_t seed)
{
    static const char *const why[] = {
        [PITH_STOP_LENGTH] = "the number of tokens asked for",
        [PITH_STOP_EOG] = "the end token",
        [PITH_STOP_STRING] = "a stop string",
        [PITH_STOP_CONTEXT] = "the full context",
        [PITH_STOP_CALLBACK] = "the output",
        [PITH_STOP_CANCELLED] = "Ctrl-C",
    };
    if (on_a_text())
        fputc('\n', stderr);
    int64_t held = r->stop == PITH_STOP_CANCELLED ? pith_length(s, 0) : r->n_prompt;
    int64_t n = r->n_prompt - r->n_kept, fed = held < r->n_prompt ? held - r->n_kept : n;
    timing("prompt", fed < 0 ? 0 : fed, n, r->prefill_ns);
    timing("\ntext", r->n_generated, r->n_generated, r->decode_ns);
    if ((size_t)r->stop < sizeof why / sizeof why[0])
        fprintf(stderr, ", ended by %s", why[r->stop]);
    if (seed >= 0)
        fprintf(stderr, ", seed %lld", (long long)seed);
    fputc('\n', stderr);
}

/* ---------------------------------------------------------------- data in and out */

int cli_read_file(const char *path, char **out, size_t *n)
{
    enum { STEP = 1 << 16, MOST = 1 << 30 };
    int is_stdin = !strcmp(path, "-"), code = CLI_OK;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    char *buf = NULL;
    size_t used = 0, cap = 0, got = 0;
    if (!f)
        return cli_say(errno == ENOENT ? CLI_INPUT : CLI_SYSTEM, "%s: cannot open: %s", path,
                       strerror(errno));
    do {
        used += got;
        if (cap - used < STEP) {
            char *more = cap < MOST ? realloc(buf, (cap = 2 * cap + 2 * STEP)) : NULL;
            if (!more) {
                code = cli_say(CLI_SYSTEM, "%s: too large to read at once (over %zu bytes)", path,
                               used);
                break;
            }
            buf = more;
        }
        errno = 0;
        got = fread(buf + used, 1, cap - used - 1, f);
    } while (got > 0);
    if (ferror(f))
        code = cli_say(interrupt_asked() ? CLI_INTERRUPTED
                       : errno == EISDIR ? CLI_INPUT
                                         : CLI_SYSTEM,
                       "%s: cannot read: %s", is_stdin ? "stdin" : path, strerror(errno));
    if (!is_stdin)
        fclose(f);
    if (code) {
        free(buf);
        return code;
    }
    buf[used] = 0;
    *out = buf;
    *n = used;
    return CLI_OK;
}

int cli_write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EAGAIN) { /* whoever shares the pipe or terminal made it so */
            struct pollfd out = {.fd = fd, .events = POLLOUT};
            poll(&out, 1, -1);
            continue;
        }
        if (put < 0 && errno != EINTR)
            return errno;
        if (put > 0) {
            p += put;
            n -= (size_t)put;
        }
    }
    return 0;
}

json_t *cli_json_text(const char *p, size_t n)
{
    json_t *clean = json_stringn(p, n);
    size_t cap = clean ? 0 : (size_t)pith_utf8(p, n, NULL, 0);
    char *buf = clean ? NULL : malloc(cap + 1);
    if (!buf)
        return clean;
    pith_utf8(p, n, buf, cap);
    clean = json_stringn(buf, cap);
    free(buf);
    return clean;
}

int32_t *cli_tokenize(const pith_model *m, const char *text, size_t n, int flags, int64_t *n_ids,
                      struct pith_error *err)
{
    size_t cap = n / 2 + 16;
    for (;;) {
        int32_t *ids = malloc(cap * sizeof *ids);
        if (!ids) {
            *err = (struct pith_error){PITH_NOMEM, "out of memory"};
            return NULL;
        }
        int64_t got = pith_tokenize(m, text, n, flags, ids, cap, err);
        if (got >= 0 && (size_t)got <= cap) {
            *n_ids = got;
            return ids;
        }
        free(ids);
        if (got < 0)
            return NULL;
        cap = (size_t)got;
    }
}

json_t *cli_json_failure(const char *why)
{
    return json_pack("{s:o}", "error", cli_json_text(why, strlen(why)));
}

int cli_answer_lines(cli_answer_fn answer_line, void *ctx)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    int code = CLI_OK;
    errno = 0;
    while (!code && (n = getline(&line, &cap, stdin)) > 0) {
        json_t *answer = answer_line(ctx, line, (size_t)n);
        if (!answer) {
            code = cli_no_memory();
        } else if (json_dumpf(answer, stdout, JSON_COMPACT) || putchar('\n') == EOF ||
                   fflush(stdout) == EOF) {
            break; /* cli_finish says so */
        }
        json_decref(answer);
        errno = 0;
    }
    if (n < 0 && !feof(stdin) && !code)
        code = cli_say(interrupt_asked() ? CLI_INTERRUPTED : CLI_SYSTEM, "stdin: cannot read: %s",
                       strerror(errno));
    free(line);
    return code;
}
