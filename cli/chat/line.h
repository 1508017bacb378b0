/* line.h -- lines from a terminal: with editing, history and pastes of several lines where
 * libedit is installed and the terminal can do it, else as the terminal hands them over.
 * Text is UTF-8 whatever the locale says. */
#ifndef PITH_CLI_LINE_H
#define PITH_CLI_LINE_H

struct line;

enum line_status {
    LINE_TEXT,
    LINE_END,         /* Ctrl-D, or the terminal is gone */
    LINE_INTERRUPTED, /* Ctrl-C; what was typed is dropped */
    LINE_TOO_LONG,    /* longer than the terminal hands over: its rest is lost, so it is no text */
    LINE_NO_MEMORY,
};

/* history: a file that lines are remembered in, NULL: in memory alone. NULL: no memory. */
struct line *line_open(const char *history);
void line_close(struct line *l); /* writes the history */
/* The prompt's first n_dim bytes are shown dimmed when colours is set. *text (malloc) may hold
 * several lines; no newline at its end. */
enum line_status line_read(struct line *l, const char *prompt, int n_dim, int colours, char **text);
void line_remember(struct line *l, const char *text);
int line_edits(const struct line *l);

#endif
