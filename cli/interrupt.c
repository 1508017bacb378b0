/* interrupt.c -- Ctrl-C: the first one asks the work to stop where it can be stopped cleanly, the
 * second one ends the program. The handler touches only what is safe in one: two flags, pith_cancel
 * and _exit.
 */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cli.h"

static volatile sig_atomic_t asked;
static _Atomic(pith_session *) watched;

static void on_signal(int sig)
{
    (void)sig;
    if (asked)
        _exit(CLI_INTERRUPTED);
    asked = 1;
    pith_session *s = atomic_load(&watched);
    if (s)
        pith_cancel(s);
}

void interrupt_install(void)
{
    /* Without SA_RESTART, so that a read of the prompt from a terminal ends too. */
    struct sigaction act = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

void interrupt_watch(pith_session *s)
{
    atomic_store(&watched, s);
    if (s && asked) /* it came before there was anything to cancel */
        pith_cancel(s);
}

int interrupt_asked(void)
{
    return asked;
}
