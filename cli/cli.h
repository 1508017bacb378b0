/* cli.h -- what the commands of pith share.
 *
 * A command is one file with one `const struct command`, and one row in commands.def. Its run()
 * gets its options already parsed and returns an exit code. Results go to stdout; everything else
 * to stderr.
 * Programs use pith.h and nothing else of the library. */
#ifndef PITH_CLI_H
#define PITH_CLI_H

#include <jansson.h>
#include <pith.h>
#include <stdio.h>

#include "cli/args/args.h"

struct command {
    const char *name, *summary;
    struct args_spec args;
    size_t opts_bytes;
    int (*run)(void *opts);
};
#define COMMAND(name) extern const struct command cmd_##name;
#include "cli/commands.def"
#undef COMMAND

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
/* Of a name that is none of pith_arch_names: the nearest, and all. */
int cli_unknown_arch(const char *name);
/* What comes from a model, a file or a server may hold any byte; a terminal is shown its control
 * characters as ^X. */
void cli_tell(const char *fmt, ...)
    __attribute__((format(printf, 1, 2))); /* on stderr, as it is but for that */
int cli_write_text(int fd, int is_terminal, const char *p,
                   size_t n); /* whole characters; 0, or the errno of what failed */
/* From now on what is printed to the stream goes to its terminal that way; one that is no terminal
 * stays as it is. */
void cli_guard(FILE **stream);
/* The first part of p[0..n) that can be shown as it is, [*plain], and behind it a control character
 * and what it is shown as, if there is one. Returns the bytes of both. */
size_t cli_visible(const char *p, size_t n, size_t *plain, char shown[2]);
/* Draws one line of progress on stderr, a terminal, over the last one: text, or brief where it is
 * too narrow for that; cut to what it holds, so that it never wraps. */
void cli_draw(const char *text, const char *brief);
/* Flushes stdout; code, or CLI_SYSTEM with a message when what was printed did not arrive. A reader
 * that has closed its end early (head) is no error. */
int cli_finish(int code);
double cli_seconds(void); /* monotonic */
/* Two lines on stderr: tokens read and made, and what ended the text. seed -1: none. */
void cli_timings(const pith_session *s, const struct pith_generate_result *r, int64_t seed);

/* ---------------------------------------------------------------- data in and out (common.c) */

/* Reads all of a file ("-" = stdin) into *out (malloc, terminated). Returns an exit code. */
int cli_read_file(const char *path, char **out, size_t *n);
/* A key of a file as text, cut at cap; *out stays as it is without one, or with f NULL. */
void cli_file_text(const pith_file *f, const char *key, char *out, size_t cap);
int cli_write_all(int fd, const char *p, size_t n); /* 0, or the errno of what failed */
/* A device, a pipe or a socket, and a link of the system's to what is open (/dev/stdout): not to be
 * replaced by a file. */
int cli_is_device(const char *path);
/* A file that gets its name when it is complete (out_file.c): it is written beside (where a link
 * points to), and a device or stdout ("-") is written itself: tmp is NULL. check, before the work
 * is done, refuses a folder, and "-" that is a terminal. close gives the file its name when code is
 * CLI_OK and removes it otherwise. All return an exit code, the message is out. */
struct cli_out {
    FILE *f;
    char *tmp, *target;
    const char *path;
};
int cli_out_check(const char *path);
int cli_out_open(struct cli_out *w, const char *path);
int cli_out_close(struct cli_out *w, int code);
/* A whole text, as such a file. 0, or the errno of what failed: nothing has changed. */
int cli_replace_file(const char *path, const char *text);
/* Bytes as a JSON string; those that are not UTF-8 become U+FFFD. NULL: no memory. */
json_t *cli_json_text(const char *p, size_t n);
json_t *cli_json_failure(const char *why); /* {"error": why} */
/* --jsonl: answers each line of stdin with a line of JSON, at once. answer_line returns {"error"}
 * for a line that is wrong, NULL only when there is no memory. Returns an exit code. */
typedef json_t *(*cli_answer_fn)(void *ctx, const char *line, size_t n);
int cli_answer_lines(cli_answer_fn answer_line, void *ctx);
/* Text to ids (malloc). NULL with *err. */
int32_t *cli_tokenize(const pith_model *m, const char *text, size_t n, int flags, int64_t *n_ids,
                      struct pith_error *err);

/* ---------------------------------------------------------------- signals (interrupt.c) */

/* From now on Ctrl-C (and SIGTERM) asks first and exits the second time; a closed pipe is a write
 * error; a model's file that cannot be read any more ends the program with a message. */
void interrupt_install(void);
void interrupt_watch(pith_session *s); /* what the first one cancels; NULL: nothing */
int interrupt_asked(void);
/* For a program that goes on after Ctrl-C: from now on it only asks, however often it comes. */
void interrupt_stay(void);
enum { INTERRUPT_NONE, INTERRUPT_STOP, INTERRUPT_END };
/* What was asked since the last call: to stop what goes on, or (SIGTERM, never forgotten) to leave.
 */
int interrupt_take(void);

/* Tells the service manager that started the program, if one did ($NOTIFY_SOCKET; notify.c). */
void cli_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---------------------------------------------------------------- finding a model (find_model.c)
 */

/* Makes the name of a model the path of its file, which stays until the program ends. A name is a
 * path; what 'pith list' calls a model in pith's folder or another tool's; or a reference
 * (names.h), fetched when it is not here. What is none of them stays as it is, for whoever opens it
 * to say so. To be called when nothing else is left to be wrong, as fetching may take hours.
 * Returns an exit code, the message is out. */
int cli_model_path(const char **name);

/* ---------------------------------------------------------------- opening a model (model.c) */

struct thread_opts {
    int64_t n_decode, n_prefill; /* 0: not given, -1: auto */
    const char *affinity, *priority, *numa;
};
struct device_opts {
    const char *list, *split, *shares;
    int64_t n_layers, main, n_cpu_experts, upload_rows, recordings, keep_free;
    int cpu_experts, record_prefill;
    struct arg_texts placements;
};
struct model_opts {
    struct device_opts devices;
    const char *path, *weights, *cache_k, *cache_v, *cache_dir, *store_dir, *trace;
    struct thread_opts threads;
    int64_t n_ctx, cache_limit, store_limit;
    struct arg_texts overrides;
    int no_cache_dir, no_read_ahead, strict, reproducible, verbose;
    int ctx_of_tests; /* the command knows how large a context it wants */
    int tells_room; /* context and cache of a session are said, whatever else is */
};
/* clang-format off */
/* The rows every command with a model has; `member` is the command's struct model_opts. */
#define ARGS_MODEL_FILE(opts, member)                                                              \
    {.name = "MODEL", .required = 1, ARG_FIELD(opts, member.path, ARG_TEXT),                       \
     .env = "PITH_MODEL",                                                                          \
     .help = "GGUF file (the first part of a split one), the name of a model that 'pith list' "    \
             "shows, or a reference as 'pith pull' takes, which is fetched when it is not here"}
#define ARGS_MODEL(opts, member)                                                                   \
    {.name = "--threads", .alias = "-t", .meta = "N|auto", .word = "auto", .lo = 1, .hi = 1024,    \
     ARG_FIELD(opts, member.threads.n_decode, ARG_INT), .otherwise = "the fast cores it may use",  \
     .help = "threads; auto measures once and keeps the result in the cache folder"},              \
    ARGS_MODEL_PLACES(opts, member),                                                               \
    ARGS_MODEL_CACHE(opts, member)
/* Which device computes what. */
#define ARGS_DEVICES(opts, m)                                                                      \
    {.name = "--device", .alias = "-dev", .meta = "LIST", ARG_FIELD(opts, m.list, ARG_TEXT),       \
     .otherwise = "the CPU and the GPUs",                                                          \
     .help = "devices that may be used, as 'pith devices' names them, with commas between them; "  \
             "CPU: no GPU"},                                                                       \
    {.name = "--gpu-layers", .alias = "-ngl", .meta = "N|auto|all", .dflt = "auto",                \
     ARG_FIELD(opts, m.n_layers, ARG_INT), .word = "auto|all", .lo = 0, .hi = 1 << 20,            \
     .help = "layers on GPUs, the last ones first; auto: as many as fit beside a session"},        \
    {.name = "--fit-target", .alias = "-fitt", .meta = "MIB", .dflt = "0", .hi = 1 << 30,          \
     ARG_FIELD(opts, m.keep_free, ARG_INT),                                                        \
     .help = "MiB of each GPU that --gpu-layers auto leaves free, beside what --lora needs"},      \
    {.name = "--split-mode", .alias = "-sm", ARG_FIELD(opts, m.split, ARG_CHOICE),                 \
     .choices = "layer|none|row|tensor", .dflt = "layer",                                          \
     .help = "several GPUs share the layers (layer), the rows of each matrix and experts (row), "  \
             "these and heads with their cache, and columns where that brings less between them "  \
             "(tensor: other bits), or there is only the main one (none)"},                        \
    {.name = "--tensor-split", .alias = "-ts", .meta = "N,N,..",                                   \
     ARG_FIELD(opts, m.shares, ARG_TEXT), .otherwise = "by their free memory",                     \
     .help = "share of the layers, or rows, that each GPU takes, as 3,1"},                         \
    {.name = "--main-gpu", .alias = "-mg", ARG_FIELD(opts, m.main, ARG_INT), .hi = 63,             \
     .dflt = "0",                                                                                  \
     .help = "by its number among the GPUs: the one of --split-mode none, the one that has all "   \
             "but the other GPUs' rows with row and tensor"},                                      \
    {.name = "--override-tensor", .alias = "-ot", .meta = "PATTERN=DEVICE",                        \
     ARG_FIELD(opts, m.placements, ARG_TEXTS),                                                     \
     .help = "weights whose names match this extended regular expression go to this device; may "  \
             "be given several times or with commas, the first match counts"},                     \
    {.name = "--cpu-moe", .alias = "-cmoe", ARG_FIELD(opts, m.cpu_experts, ARG_SWITCH),            \
     .help = "experts of all layers stay on the CPU"},                                             \
    {.name = "--n-cpu-moe", .alias = "-ncmoe", ARG_FIELD(opts, m.n_cpu_experts, ARG_INT),          \
     .hi = 1 << 20, .dflt = "0", .help = "experts of so many first layers stay on the CPU"},       \
    {.name = "--op-offload", .meta = "N|auto|off", .dflt = "auto",                                 \
     ARG_FIELD(opts, m.upload_rows, ARG_INT), .word = "auto|off", .lo = 1, .hi = 1 << 20,          \
     .help = "steps of N tokens or more bring weights that are on the CPU to a GPU and multiply "  \
             "there; auto: from as many on as pay, which is measured"},                            \
    {.name = "--recordings", .meta = "N|auto", .dflt = "auto",                                     \
     ARG_FIELD(opts, m.recordings, ARG_INT), .word = "auto", .lo = 0, .hi = 1024,                  \
     .help = "shapes of steps whose commands GPUs keep and run again, for each part of a plan; "   \
             "auto: as the environment says, else 12; 0: none"},                                   \
    {.name = "--record-prefill", ARG_FIELD(opts, m.record_prefill, ARG_SWITCH),                    \
     .help = "steps of many tokens are recorded, too"}
/* For commands that have a --threads of their own. */
#define ARGS_MODEL_PLACES(opts, member)                                                            \
    ARGS_DEVICES(opts, member.devices),                                                            \
    {.name = "--threads-prefill", .alias = "-tb", .meta = "N|auto", .word = "auto", .lo = 1,       \
     .hi = 1024,                                                                                   \
     ARG_FIELD(opts, member.threads.n_prefill, ARG_INT),                                           \
     .otherwise = "as --threads, else the cores it may use",                                       \
     .help = "threads of steps with more than 16 tokens"},                                         \
    {.name = "--affinity", .meta = "none|spread|compact|LIST", .choices = "none|spread|compact",   \
     ARG_FIELD(opts, member.threads.affinity, ARG_CPUS), .dflt = "none",                           \
     .help = "processor of each thread: spread over cores, node by node, or from a list 0-3,8"},   \
    {.name = "--priority", ARG_FIELD(opts, member.threads.priority, ARG_CHOICE),                   \
     .choices = "low|normal|high|realtime", .dflt = "normal",                                      \
     .help = "scheduling priority of all threads"},                                                \
    {.name = "--numa", ARG_FIELD(opts, member.threads.numa, ARG_CHOICE),                           \
     .choices = "off|spread|isolate", .dflt = "off",                                               \
     .help = "spread threads and weights over memory nodes, or stay on the node it starts on"}
/* The prefix store's folder, for commands that want it. */
#define ARGS_STORE(opts, member)                                                                   \
    {.name = "--store-dir", .meta = "DIR", ARG_FIELD(opts, member.store_dir, ARG_TEXT),            \
     .help = "keep what was computed of prompts in this folder, so that later runs need not "      \
             "compute their beginnings again; made if it is not there"},                           \
    {.name = "--store-limit", .meta = "BYTES", ARG_FIELD(opts, member.store_limit, ARG_SIZE),      \
     .lo = 1, .dflt = "32G",                                                                       \
     .help = "bytes in that folder; what was unused for longest goes first"}
#define ARGS_LORA(opts, member)                                                                    \
    {.name = "--lora", .meta = "FILE[:SCALE]", ARG_FIELD(opts, member, ARG_TEXTS),                 \
     .help = "add a low-rank adapter (GGUF) to the model, SCALE times (1); may be given several "  \
             "times"}
#define CACHE_TYPES "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl"
#define ARGS_MODEL_CACHE(opts, member)                                                             \
    {.name = "--cache-type-k", .alias = "-ctk", ARG_FIELD(opts, member.cache_k, ARG_CHOICE),       \
     .choices = CACHE_TYPES, .dflt = "f16", .help = "type of the cached keys"},                    \
    {.name = "--cache-type-v", .alias = "-ctv", ARG_FIELD(opts, member.cache_v, ARG_CHOICE),       \
     .choices = CACHE_TYPES, .dflt = "f16", .help = "type of the cached values"},                  \
    {.name = "--weights", ARG_FIELD(opts, member.weights, ARG_CHOICE),                             \
     .choices = "auto|mapped|packed|later", .dflt = "auto",                                        \
     .help = "weights straight from the file's pages, or packed for the kernels at load, or "      \
             "while the first prompt runs (auto: of large models)"},                               \
    {.name = "--cache-dir", .meta = "DIR", ARG_FIELD(opts, member.cache_dir, ARG_TEXT),            \
     .otherwise = "packed/ in $PITH_CACHE or ~/.cache/pith, if you have made it",                  \
     .help = "keep a copy of the packed weights here (as large as the model), so that later "      \
             "starts map it; made if it is not there"},                                            \
    {.name = "--cache-limit", ARG_FIELD(opts, member.cache_limit, ARG_SIZE), .lo = 1,              \
     .dflt = "32G", .help = "bytes of such copies; the one unused for longest goes first"},        \
    {.name = "--no-cache-dir", ARG_FIELD(opts, member.no_cache_dir, ARG_SWITCH),                   \
     .help = "neither keep copies of packed weights nor use them"},                                \
    {.name = "--no-read-ahead", ARG_FIELD(opts, member.no_read_ahead, ARG_SWITCH),                 \
     .help = "read experts that stay in the file when they are used, and not before that"},        \
    {.name = "--override-kv", .meta = "KEY=TYPE:VALUE",                                            \
     ARG_FIELD(opts, member.overrides, ARG_TEXTS),                                                 \
     .help = "another value for a key of the file; TYPE is int, float, bool or str; may be given " \
             "several times"},                                                                     \
    {.name = "--strict", ARG_FIELD(opts, member.strict, ARG_SWITCH),                               \
     .help = "refuse instead of falling back to a slower kernel or device"},                       \
    {.name = "--reproducible", ARG_FIELD(opts, member.reproducible, ARG_SWITCH),                   \
     .help = "the same bits whatever else is in a batch on GPUs, too, as the CPU always has it"}, \
    {.name = "--trace", .meta = "FILE", ARG_FIELD(opts, member.trace, ARG_TEXT),                   \
     .help = "write what ran when to this file, as a Chrome trace (devices, copies, sampling)"},   \
    {.name = "--verbose", .alias = "-v", ARG_FIELD(opts, member.verbose, ARG_SWITCH),              \
     .help = "progress, timings and the execution report on stderr"}
/* clang-format on */

/* Begins the trace that the options ask for, if they do and none goes on; it is written when the
 * program ends (cli_trace_end, whose code is the program's: a trace that is not written is an
 * error, behind any other). Both return an exit code, the message is out. */
int cli_trace_begin(const struct model_opts *o);
int cli_trace_end(int code);

/* Opens with the options and what else *params says (its progress is set here), showing how far it
 * is. NULL: *code is the exit code, the message is out. */
pith_model *cli_model_open(const struct model_opts *o, struct pith_model_params *params, int *code);
/* The same for who tells errors elsewhere: NULL with *err; where *code is set, a flag was wrong and
 * the message is out. */
pith_model *cli_model_try(const struct model_opts *o, struct pith_model_params *params,
                          struct pith_error *err, int *code);
pith_session *cli_session_try(pith_model *m, const struct model_opts *o, int32_t n_ctx,
                              struct pith_session_params *params, struct pith_error *err);
/* n_ctx: as pith_session_params; the other fields of *params are kept. */
pith_session *cli_session_open(pith_model *m, const struct model_opts *o, int32_t n_ctx,
                               struct pith_session_params *params, int *code);
/* Adapters (lora.c): FILE[:SCALE] each. What was opened is in *out whatever is returned. */
enum { CLI_LORAS = 16 };
struct cli_loras {
    struct pith_adapter_use use[CLI_LORAS];
    char path[CLI_LORAS][512];
    int n;
    int32_t rank; /* the largest */
};
uint64_t cli_loras_bytes(const struct arg_texts *said); /* on a device; 0 of what is no such file */
pith_status cli_loras_open(pith_model *m, const struct arg_texts *said, struct cli_loras *out,
                           struct pith_error *err);
void cli_loras_close(struct cli_loras *l);
/* Fills what *params says of threads, measuring for auto, and sets the priority (threads.c).
 * Returns an exit code. */
int cli_threads(const struct thread_opts *o, int chatty, struct pith_model_params *params);
/* What auto stands for: from the cache folder, else measured and kept there. Returns an exit code.
 */
int cli_auto_threads(struct pith_threads *t, int chatty);
/* CACHE/name, the cache folder being $PITH_CACHE, $XDG_CACHE_HOME/pith or ~/.cache/pith. 0: there
 * is none, or it is too long. */
int cli_cache_path(const char *name, char *out, size_t cap);
/* Makes a folder, and those on the way, for this user alone; one that is there becomes so. 0: errno
 * says why it cannot. */
int cli_make_private(const char *dir);
int cli_chatty(const struct model_opts *o); /* progress and timings are wanted */
void cli_report(const pith_session *s);     /* the execution report, on stderr */

/* ---------------------------------------------------------------- sampling (sampler.c) */

/* The rows of samplers.def are in sampler_rows.def; what has no value is ARG_NONE or NaN. */
struct sampler_opts {
#define INT  int64_t
#define REAL double
#define SETTING(name, member, type, ...) type name;
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
    const char *chain;
    int64_t seed;
    struct arg_texts dry_breakers, bias;
    int resumable; /* no flag: set by who saves samplers */
};
/* clang-format off */
/* The other rows of every command that samples; `m` is the command's struct sampler_opts. */
#define ARGS_SAMPLER(opts, m)                                                                      \
    {.name = "--dry-sequence-breaker", .meta = "TEXT",                                             \
     ARG_FIELD(opts, m.dry_breakers, ARG_TEXTS), .otherwise = "newline, colon, quote, star",       \
     .help = "text that repetitions do not reach over; may be given several times; none: there "   \
             "is none"},                                                                           \
    {.name = "--logit-bias", .meta = "ID=X", ARG_FIELD(opts, m.bias, ARG_TEXTS),                   \
     .help = "add X to the logit of a token; -inf: never; may be given several times"},            \
    {.name = "--samplers", .meta = "CHAIN", ARG_FIELD(opts, m.chain, ARG_TEXT),                    \
     .otherwise = "bias and penalties, what leaves tokens out, temperature",                       \
     .help = "the samplers in order, as in \"penalties;top_k:k=9;temp\"; what a name does not "    \
         "set comes from the flags, --logit-bias counts in any; 'pith sample --list' lists them"}, \
    {.name = "--seed", .alias = "-s", ARG_FIELD(opts, m.seed, ARG_INT), .lo = -1, .dflt = "-1",    \
     .help = "the same seed gives the same text on every machine; -1: a new one each time"}
/* clang-format on */

/* What is wrong with the flags whatever the model is: the exit code, the message is out. */
int cli_sampler_check(const struct sampler_opts *o);
/* Sets o->seed to the one that is used, -1 when none is, and what has no value to what holds. NULL:
 * *code is the exit code, the message is out. */
pith_sampler *cli_sampler_open(struct sampler_opts *o, const pith_model *m, int *code);

/* ---------------------------------------------------------------- chat templates (form.c) */

struct form_opts {
    const char *template, *kwargs, *think;
};
extern const char cli_form_help[];
/* clang-format off */
#define ARGS_FORM(opts, member)                                                                    \
    {.name = "--chat-template", .meta = "FILE|NAME", ARG_FIELD(opts, member.template, ARG_TEXT),   \
     .otherwise = "the model's own",                                                               \
     .help = cli_form_help},                                                                       \
    {.name = "--template-kwargs", .meta = "JSON", ARG_FIELD(opts, member.kwargs, ARG_TEXT),        \
     .otherwise = "none", .help = "variables for the template, a JSON object"},                    \
    {.name = "--think", ARG_FIELD(opts, member.think, ARG_CHOICE), .choices = "on|off|auto",       \
     .dflt = "auto", .help = "reasoning before an answer, where the template lets it be chosen "   \
                             "(its variable enable_thinking); auto: as the template does it"}
/* clang-format on */
struct form {
    const pith_template *t; /* NULL: the model has none */
    pith_template *own;
    char ends[68]; /* the text that ends answers in one that is not the model's; "": tokens do */
};
/* Before a model is there: *variables (the caller's) is what the flags say. Returns an exit code.
 */
int cli_form_check(const struct form_opts *o, json_t **variables);
/* The text, the caller's, of the common format that is called so, else of the file. Returns an exit
 * code. */
int cli_form_text(const char *asked, char **text, size_t *n);
/* Puts what a template of a file has to know into variables. Returns an exit code. */
int cli_form_open(const struct form_opts *o, const pith_model *m, struct form *out,
                  json_t *variables);
void cli_form_close(struct form *f);

/* ---------------------------------------------------------------- constrained output (grammar.c)
 */

struct grammar_opts {
    const char *grammar, *schema, *trigger;
    int json, schema_order;
    int behind; /* no flag: trigger is what ends the reasoning that a prompt began */
    const char *kept; /* no flags: the text in the terms of the flag that would give it */
    char *text;       /* what the file held, or a saved session (malloc) */
    size_t n;
};
/* clang-format off */
#define ARGS_GRAMMAR(opts, member)                                                                 \
    {.name = "--grammar", .meta = "FILE", ARG_FIELD(opts, member.grammar, ARG_TEXT),               \
     .help = "write what this grammar (GBNF) describes; a file, or the text itself"},              \
    {.name = "--schema", .meta = "FILE", ARG_FIELD(opts, member.schema, ARG_TEXT),                 \
     .help = "write JSON that satisfies this JSON Schema; a file, or the text itself"},            \
    {.name = "--json", ARG_FIELD(opts, member.json, ARG_SWITCH), .help = "write a JSON object"},   \
    {.name = "--schema-order", ARG_FIELD(opts, member.schema_order, ARG_SWITCH),                   \
     .help = "members of objects in the order of the schema, not in any"},                         \
    {.name = "--trigger", .meta = "TEXT", ARG_FIELD(opts, member.trigger, ARG_TEXT),               \
     .otherwise = "what ends the reasoning that the prompt begins, if any",                        \
     .help = "anything may come until this text; the grammar holds for what follows it"}
/* clang-format on */
/* As cli_sampler_check; reads nothing. */
int cli_grammar_check(const struct grammar_opts *o);
/* The flag that gives the grammar, or gave it to a saved session; NULL: there is none. */
const char *cli_grammar_flag(const struct grammar_opts *o);
/* o->text, if there is a file and it has not been read. Returns an exit code. */
int cli_grammar_read(struct grammar_opts *o);
/* NULL: none was asked for, or *code is the exit code and the message is out. */
pith_grammar *cli_grammar_open(struct grammar_opts *o, pith_model *m, int *code);
/* The same grammar, behind a trigger. What it does not keep has been said. NULL: *err. */
pith_grammar *cli_grammar_behind(const struct grammar_opts *o, pith_model *m, const char *trigger,
                                 struct pith_error *err);

/* ---------------------------------------------------------------- what a session keeps (kept.c) */

/* What a saved session tells of the flags of sampling and of the grammar: where none is given it
 * holds from now on, and what is given and differs is said. The texts belong to *kept (NULL: the
 * file keeps none, which is said). Returns an exit code. */
int cli_kept_take(const char *path, struct sampler_opts *sampler, struct grammar_opts *grammar,
                  json_t **kept);
/* The flags as they hold, for the file (malloc). NULL: the exit code is in *code. */
char *cli_kept_text(const struct sampler_opts *sampler, const struct grammar_opts *grammar,
                    int *code);

#endif
