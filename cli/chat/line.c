/* line.c -- see line.h.
 *
 * Editing reads the terminal by a function of ours, because libedit's own would end a line when the
 * window changes its size, and would hand Ctrl-C to the whole process group. A terminal marks a
 * paste by ESC [200~ and ESC [201~ once it is asked to (xterm's bracketed paste): such text is put
 * into the line as it is, with its newlines, and sent by the key Enter alone.
 *
 * libedit brings three libraries along, so the first line that is edited opens it, and a program
 * runs where it is not installed. PITH_LIBEDIT=2: it is a part of the program (STATIC=1).
 *
 * Without editing the terminal gathers the line. Linux keeps 4,095 bytes of it and drops the rest
 * without a word, so a line of that length is refused. */
#include "cli/chat/line.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef PITH_LIBEDIT
#include <dlfcn.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <wchar.h>
#endif

#include "cli/cli.h"

enum { TERMINAL_LINE = 4095 };

struct line {
#ifdef PITH_LIBEDIT
    EditLine *el;
    History *history;
    const char *path;
    mbstate_t state;
    sigset_t waiting; /* signals blocked while nothing is drawn */
    char prompt[160];
#else
    char unused;
#endif
};

/* ---------------------------------------------------------------- as the terminal hands them over
 */

static enum line_status read_plain(const char *prompt, char **text)
{
    size_t cap = 0;
    *text = NULL;
    fputs(prompt, stderr);
    errno = 0;
    ssize_t n = getline(text, &cap, stdin);
    int why = errno;
    clearerr(stdin); /* Ctrl-D ends this line alone */
    if (n > 0 && n < TERMINAL_LINE) {
        (*text)[n - ((*text)[n - 1] == '\n')] = 0;
        return LINE_TEXT;
    }
    free(*text);
    *text = NULL;
    return n > 0               ? LINE_TOO_LONG
           : interrupt_asked() ? LINE_INTERRUPTED
           : why == ENOMEM     ? LINE_NO_MEMORY
                               : LINE_END;
}

/* ---------------------------------------------------------------- libedit */

#ifdef PITH_LIBEDIT

enum { HISTORY_LINES = 1000 };
static volatile sig_atomic_t resized, continued;

#define EDIT_FUNCTIONS(X)                                                                          \
    X(el_end) X(el_get) X(el_gets) X(el_init) X(el_resize) X(el_set) X(el_source) X(el_wgetc)      \
        X(el_winsertstr) X(history) X(history_end) X(history_init)
#define FUNCTION(name) __typeof__(name) *name;
static struct {
    EDIT_FUNCTIONS(FUNCTION)
} lib;
#undef FUNCTION

static int open_library(void)
{
#if PITH_LIBEDIT == 2
#define FUNCTION(name) lib.name = name;
    EDIT_FUNCTIONS(FUNCTION)
    return 1;
#else
    static const char *const names[] = {"libedit.so.2", "libedit.so.0"}; /* Debian, Fedora */
    void *file = NULL;
    if (lib.history_init) /* the last of the list */
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names && !file; i++)
        file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return 0;
#define FUNCTION(name) &&(lib.name = (__typeof__(lib.name))dlsym(file, #name))
    return 1 EDIT_FUNCTIONS(FUNCTION);
#endif
#undef FUNCTION
}

static void on_terminal(int sig)
{
    if (sig == SIGWINCH)
        resized = 1;
    else
        continued = 1;
}

static struct line *line_of(EditLine *el)
{
    void *l = NULL;
    lib.el_get(el, EL_CLIENTDATA, &l);
    return l;
}

static char *get_prompt(EditLine *el)
{
    return line_of(el)->prompt;
}

/* Puts the terminal's state and the line on it right again. */
static void redraw(EditLine *el)
{
    if (continued)
        lib.el_set(el, EL_PREP_TERM, 1); /* the shell had it meanwhile */
    if (resized) {
        lib.el_resize(el); /* which takes the line to be empty then */
        fputs("\r\033[J", stdout);
    }
    resized = continued = 0;
    lib.el_set(el, EL_REFRESH);
}

/* One character; bytes that are none become U+FFFD. 0: end, -1: interrupted or failed. */
static int get_char(EditLine *el, wchar_t *wc)
{
    struct line *l = line_of(el);
    for (;;) {
        char byte;
        if (interrupt_asked())
            return -1;
        if (resized || continued)
            redraw(el);
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(&in, 1, NULL, &l->waiting) < 0 && errno == EINTR)
            continue;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(wc, &byte, 1, &l->state);
        if (used == (size_t)-2) /* so far the beginning of one */
            continue;
        if (used == (size_t)-1) {
            memset(&l->state, 0, sizeof l->state);
            *wc = 0xFFFD;
        }
        return 1;
    }
}

/* Bound to the mark of a paste's beginning. */
static unsigned char paste(EditLine *el, int ch)
{
    static const wchar_t mark[] = L"\033[201~";
    enum { N_MARK = 6 };
    wchar_t *text = NULL, wc;
    size_t n = 0, cap = 0;
    int ended = 0;
    (void)ch;
    while (!ended && lib.el_wgetc(el, &wc) == 1) {
        if (cap - n < 2) {
            wchar_t *more = realloc(text, (cap = 2 * cap + 256) * sizeof *more);
            if (!more)
                break;
            text = more;
        }
        if (wc == L'\n' && n && text[n - 1] == L'\r')
            n--;
        text[n++] = wc;
        ended = n >= N_MARK && !wmemcmp(text + n - N_MARK, mark, N_MARK);
    }
    unsigned char result = CC_ERROR;
    if (ended) {
        text[n -= N_MARK] = 0;
        for (size_t i = 0; i < n; i++) {
            if (text[i] == L'\r') /* what terminals make of a newline */
                text[i] = L'\n';
        }
        if (n == 0 || lib.el_winsertstr(el, text) == 0)
            result = CC_REFRESH;
    }
    free(text);
    return result;
}

static void bind_keys(EditLine *el)
{
    static const char *const keys[][2] = {
        {"\033[200~", "pith-paste"},  {"\033[3~", "ed-delete-next-char"},
        {"\033[H", "ed-move-to-beg"}, {"\033[1~", "ed-move-to-beg"},
        {"\033[F", "ed-move-to-end"}, {"\033[4~", "ed-move-to-end"},
        {"^R", "em-inc-search-prev"},
    };
    lib.el_set(el, EL_ADDFN, "pith-paste", "insert pasted text", paste);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        lib.el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static void open_editor(struct line *l, const char *path)
{
    const char *term = getenv("TERM");
    HistEvent ev;
    if (!isatty(STDOUT_FILENO) || !term || !*term || !strcmp(term, "dumb") ||
        !open_library())
        return;
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        setlocale(LC_CTYPE, "");
    l->history = lib.history_init();
    l->el = l->history ? lib.el_init("pith", stdin, stdout, stderr) : NULL;
    if (!l->el)
        return;
    lib.history(l->history, &ev, H_SETSIZE, HISTORY_LINES);
    lib.history(l->history, &ev, H_SETUNIQUE, 1);
    l->path = path;
    if (path)
        lib.history(l->history, &ev, H_LOAD, path);
    lib.el_set(l->el, EL_CLIENTDATA, l);
    lib.el_set(l->el, EL_HIST, lib.history, l->history);
    lib.el_set(l->el, EL_EDITOR, "emacs");
    lib.el_set(l->el, EL_SIGNAL, 0);
    lib.el_set(l->el, EL_PROMPT_ESC, get_prompt, '\1');
    lib.el_set(l->el, EL_GETCFN, get_char);
    bind_keys(l->el);
    lib.el_source(l->el, NULL);
}

static enum line_status read_edited(struct line *l, const char *prompt, int n_dim, int colours,
                                    char **text)
{
    struct sigaction act = {.sa_handler = on_terminal}, was_winch, was_cont;
    int n = 0;
    if (colours && n_dim)
        snprintf(l->prompt, sizeof l->prompt, "\1\033[2m\1%.*s\1\033[0m\1%s", n_dim, prompt,
                 prompt + n_dim);
    else
        snprintf(l->prompt, sizeof l->prompt, "%s", prompt);
    sigset_t quiet; /* they come while it waits for keys: a signal makes the terminal's driver
                       refuse output */
    sigemptyset(&quiet);
    sigaddset(&quiet, SIGWINCH);
    sigaddset(&quiet, SIGCONT);
    sigprocmask(SIG_BLOCK, &quiet, &l->waiting);
    sigaction(SIGWINCH, &act, &was_winch);
    sigaction(SIGCONT, &act, &was_cont);
    lib.el_resize(l->el); /* it may have changed while nobody looked */
    fputs("\033[?2004h", stdout);
    const char *line = lib.el_gets(l->el, &n);
    fputs("\033[?2004l", stdout);
    fflush(stdout);
    sigaction(SIGWINCH, &was_winch, NULL);
    sigaction(SIGCONT, &was_cont, NULL);
    sigprocmask(SIG_SETMASK, &l->waiting, NULL);
    if (!line || n <= 0)
        return interrupt_asked() ? LINE_INTERRUPTED : LINE_END;
    *text = strndup(line, (size_t)n - (line[n - 1] == '\n'));
    return *text ? LINE_TEXT : LINE_NO_MEMORY;
}

#endif

/* ---------------------------------------------------------------- either */

struct line *line_open(const char *path)
{
    struct line *l = calloc(1, sizeof *l);
#ifdef PITH_LIBEDIT
    if (l)
        open_editor(l, path);
#else
    (void)path;
#endif
    return l;
}

void line_close(struct line *l)
{
#ifdef PITH_LIBEDIT
    HistEvent ev;
    if (l && l->el) {
        if (l->path && lib.history(l->history, &ev, H_SAVE, l->path) < 0)
            cli_say(CLI_SYSTEM, "%s: cannot write the history: %s", l->path, strerror(errno));
        lib.el_end(l->el);
    }
    if (l && l->history)
        lib.history_end(l->history);
#endif
    free(l);
}

enum line_status line_read(struct line *l, const char *prompt, int n_dim, int colours, char **text)
{
#ifdef PITH_LIBEDIT
    if (l->el)
        return read_edited(l, prompt, n_dim, colours, text);
#endif
    (void)l, (void)n_dim, (void)colours;
    return read_plain(prompt, text);
}

void line_remember(struct line *l, const char *text)
{
#ifdef PITH_LIBEDIT
    HistEvent ev;
    if (l->el)
        lib.history(l->history, &ev, H_ENTER, text);
#else
    (void)l, (void)text;
#endif
}

int line_edits(const struct line *l)
{
#ifdef PITH_LIBEDIT
    return l->el != NULL;
#else
    (void)l;
    return 0;
#endif
}
