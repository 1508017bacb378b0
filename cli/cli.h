/* cli.h -- what the commands of pith share.
 *
 * A command is one file with one `const struct command`, and one row in main.c. Its run() gets its
 * options already parsed and returns an exit code. Results go to stdout; everything else to stderr.
 * Programs use pith.h and nothing else of the library. */
#ifndef PITH_CLI_H
#define PITH_CLI_H

#include <jansson.h>
#include <pith.h>

#include "args.h"

struct command {
    const char *name, *summary;
    struct args_spec args;
    size_t opts_bytes;
    int (*run)(void *opts);
};
extern const struct command cmd_run, cmd_bench, cmd_inspect, cmd_logits, cmd_tokenize, cmd_synth;

/* Exit codes: all is well; the command line is wrong; a file, prompt or model is wrong; the machine
 * failed. INTERRUPTED is what shells expect after Ctrl-C. */
enum { CLI_OK = 0, CLI_USE = 1, CLI_INPUT = 2, CLI_SYSTEM = 3, CLI_INTERRUPTED = 130 };

/* ---------------------------------------------------------------- messages (common.c) */

/* Prints "pith: message" and returns the exit code of the error's status. */
int cli_fail(const struct pith_error *err);
/* The same for an error about a file: one that is there but is no regular file is bad input. */
int cli_fail_file(const char *path, const struct pith_error *err);
/* Prints "pith: message" and returns code. */
int cli_say(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cli_no_memory(void);
/* Flushes stdout; code, or CLI_SYSTEM with a message when what was printed did not arrive. A reader
 * that has closed its end early (head) is no error. */
int cli_finish(int code);
double cli_seconds(void); /* monotonic */

/* ---------------------------------------------------------------- data in and out (common.c) */

/* Reads all of a file ("-" = stdin) into *out (malloc, terminated). Returns an exit code. */
int cli_read_file(const char *path, char **out, size_t *n);
/* Bytes as a JSON string; those that are not UTF-8 become U+FFFD. NULL: no memory. */
json_t *cli_json_text(const char *p, size_t n);
/* Text to ids (malloc). NULL with *err. */
int32_t *cli_tokenize(const pith_model *m, const char *text, size_t n, int flags, int64_t *n_ids,
                      struct pith_error *err);

/* ---------------------------------------------------------------- signals (interrupt.c) */

/* From now on Ctrl-C (and SIGTERM) asks first and exits the second time; a closed pipe is a write
 * error; a model's file that cannot be read any more ends the program with a message. */
void interrupt_install(void);
void interrupt_watch(pith_session *s); /* what the first one cancels; NULL: nothing */
int interrupt_asked(void);

/* ---------------------------------------------------------------- opening a model (model.c) */

struct model_opts {
    const char *path, *weights, *cache_k, *cache_v;
    int64_t n_threads, n_ctx;
    int strict, verbose;
};
/* clang-format off */
/* The rows every command with a model has; `member` is the command's struct model_opts. */
#define ARGS_MODEL_FILE(opts, member)                                                              \
    {.name = "MODEL", .required = 1, ARG_FIELD(opts, member.path, ARG_TEXT),                       \
     .help = "GGUF file; the first part of a split one"}
#define ARGS_MODEL(opts, member)                                                                   \
    {.name = "--threads", .alias = "-t", ARG_FIELD(opts, member.n_threads, ARG_INT), .lo = 1,      \
     .hi = 256, .env = "PITH_THREADS", .otherwise = "the cores it may use", .help = "threads"},    \
    ARGS_MODEL_CACHE(opts, member)
#define CACHE_TYPES "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl"
#define ARGS_MODEL_CACHE(opts, member)                                                             \
    {.name = "--cache-type-k", ARG_FIELD(opts, member.cache_k, ARG_CHOICE),                        \
     .choices = CACHE_TYPES, .dflt = "f16", .help = "type of the cached keys"},                    \
    {.name = "--cache-type-v", ARG_FIELD(opts, member.cache_v, ARG_CHOICE),                        \
     .choices = CACHE_TYPES, .dflt = "f16", .help = "type of the cached values"},                  \
    {.name = "--weights", ARG_FIELD(opts, member.weights, ARG_CHOICE),                             \
     .choices = "auto|mapped|packed", .env = "PITH_WEIGHTS", .dflt = "auto",                       \
     .help = "weights straight from the file's pages, or packed for the kernels at load"},         \
    {.name = "--strict", ARG_FIELD(opts, member.strict, ARG_SWITCH),                               \
     .help = "refuse instead of falling back to a slower kernel or device"},                       \
    {.name = "--verbose", .alias = "-v", ARG_FIELD(opts, member.verbose, ARG_SWITCH),              \
     .help = "progress, timings and the execution report on stderr"}
/* clang-format on */

/* Opens with the options and what else *params says (its progress is set here), showing how far it
 * is. NULL: *code is the exit code, the message is out. */
pith_model *cli_model_open(const struct model_opts *o, struct pith_model_params *params, int *code);
/* n_ctx: as pith_session_params; the other fields of *params are kept. */
pith_session *cli_session_open(pith_model *m, const struct model_opts *o, int32_t n_ctx,
                               struct pith_session_params *params, int *code);
int cli_chatty(const struct model_opts *o); /* progress and timings are wanted */
void cli_report(const pith_session *s);     /* the execution report, on stderr */

#endif
