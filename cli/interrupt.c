/* interrupt.c -- signals. Ctrl-C: the first one asks the work to stop where it can be stopped
 * cleanly, or ends the program while nothing looks for it; the second one ends it, unless there is
 * a prompt to go back to. SIGBUS: a model is mapped, so a file that is cut short or a disk that
 * fails while it is in use shows itself by this signal and no other way; the library cannot turn it
 * into a status, the program can say it. The handlers touch only what is safe in one: flags,
 * pith_cancel, write and _exit. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cli/cli.h"

static atomic_int asked, ends, stays; /* looked at by threads of loads, too */
static atomic_int heeded;             /* something looks whether it was asked to stop */
static _Atomic(pith_session *) watched;

static void on_signal(int sig)
{
    if (!heeded || (asked && (!stays || (ends && sig == SIGTERM))))
        _exit(CLI_INTERRUPTED);
    asked = 1;
    if (sig == SIGTERM)
        ends = 1;
    pith_session *s = atomic_load(&watched);
    if (s)
        pith_cancel(s);
}

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    static const char message[] =
        "pith: the model's file cannot be read any more: it was cut short, or the disk failed, "
        "while it was in use; check the file and start again\n";
    (void)context;
    if (info->si_code != BUS_ADRERR) { /* no page of a file: not ours to explain */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    ssize_t put = write(STDERR_FILENO, message, sizeof message - 1);
    (void)put; /* nobody is left to tell */
    _exit(CLI_SYSTEM);
}

void interrupt_install(void)
{
    /* Without SA_RESTART, so that a read of the prompt from a terminal ends too. */
    struct sigaction act = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore,
              NULL); /* a limit on the size of files is a failed write, which is told */
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &bus, NULL);
}

void interrupt_watch(pith_session *s)
{
    heeded = 1;
    atomic_store(&watched, s);
    if (s && asked) /* it came before there was anything to cancel */
        pith_cancel(s);
}

int interrupt_asked(void)
{
    heeded = 1;
    return asked;
}

void interrupt_stay(void)
{
    heeded = stays = 1;
}

int interrupt_take(void)
{
    if (ends)
        return INTERRUPT_END;
    int was = asked;
    asked = 0;
    return was ? INTERRUPT_STOP : INTERRUPT_NONE;
}
