/* pith.h -- the public header of libpith: open a GGUF model, feed tokens, read logits, sample, text
 * in and out. Its parts, each a subject, are in pith/.
 *
 * Example (compiled and run by the tests, as C and as C++):
 *
 *     #include <pith.h>
 *     #include <stdio.h>
 *     int main(int argc, char **argv)
 *     {
 *         struct pith_error err;
 *         pith_model *model = pith_model_open(argc > 1 ? argv[1] : "model.gguf", NULL, &err);
 *         pith_session *session = model ? pith_session_open(model, NULL, &err) : NULL;
 *         if (!session) {
 *             fprintf(stderr, "%s\n", err.msg);
 *             pith_model_close(model);
 *             return 1;
 *         }
 *         char text[4096];
 *         struct pith_generate_params params = PITH_GENERATE_PARAMS_INIT;
 *         params.prompt = "Once upon a time";
 *         params.n_max = 32;
 *         params.text = text;
 *         params.text_cap = sizeof text;
 *         struct pith_generate_result result = PITH_GENERATE_RESULT_INIT;
 *         pith_status st = pith_generate(session, &params, &result, &err);
 *         puts(st == PITH_OK ? text : err.msg);
 *         pith_session_close(session);
 *         pith_model_close(model);
 *         return st == PITH_OK ? 0 : 1;
 *     }
 *
 * Conventions
 *   Errors     Every function that can fail takes `struct pith_error *err` last (NULL allowed) and
 *              returns a pith_status, or NULL/-1 with *err filled. The message says what was found,
 *              what was wanted and what to do. A call that fails changes nothing.
 *   Structs    that one side fills for the other begin with their size, which is the caller's:
 *              start from the matching PITH_..._INIT macro; zero means "default". Where one is
 *              filled for the caller, not a byte behind its size is written; what the library does
 *              not know of is zero. So both may be of different versions. Without a size, and
 *              never to grow: pith_error, pith_logprob, pith_logit_bias, pith_span.
 *   Threads    A model is read-only after open and may be used by any number of threads. A session
 *              is used by one thread at a time; pith_cancel() alone may be called from any thread
 *              or signal handler.
 *   fork()     The child has none of the library's threads: what was opened before is the parent's,
 *              and the child must neither use nor close it. It may open models and sessions of its
 *              own, unless another thread was inside the library at the time of the fork, and it
 *              may exec or _exit. The parent goes on as before. Open models behind a fork, or in
 *              every child.
 *   Ownership  *_open and *_close pair up. Closing NULL is a no-op. A session keeps its model
 *              alive: closing order is free.
 *   Shapes     are written slowest first: logits [R, V] are R rows of V floats. Sizes are bytes,
 *              times are nanoseconds (int64_t).
 *   Tokens     are int32_t ids in 0..V-1. Text is UTF-8; bytes that are not are handled as the
 *              vocabulary says, never a crash.
 *   Law        On CPUs the logits of a token are bit-identical whatever the batch, chunking, thread
 *              count, cache hit or instruction set.
 */
#ifndef PITH_H
#define PITH_H

#define PITH_VERSION_MAJOR 0
#define PITH_VERSION_MINOR 1
#define PITH_VERSION_PATCH 0

#include "pith/core.h"
#include "pith/file.h"
#include "pith/model.h"
#include "pith/text.h"
#include "pith/session.h"
#include "pith/sample.h"
#include "pith/generate.h"

#endif
