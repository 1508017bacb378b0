/* api.h -- the handlers of the endpoints, and what files of one interface share. */
#ifndef PITH_SERVER_API_H
#define PITH_SERVER_API_H

#include <jansson.h>
#include <stdint.h>

struct exchange;
struct fault;
struct hosted;
struct server;

#define ROUTE(method, path, flags, endpoint, handle, ...)                                          \
    void handle(struct server *s, struct exchange *x);
#include "server/api/routes.def"
#undef ROUTE

/* Answers x with what `tell` says of the loaded model of its ?model=, and drops it as its route has
 * it. NULL with *f: why not. */
typedef json_t *api_teller(struct exchange *x, struct hosted *m, struct fault *f);
void api_tell(struct server *s, struct exchange *x, api_teller *tell);

/* The text of a token as it is written behind others (api_tokens.c). */
json_t *token_piece(const struct hosted *m, int32_t id);

/* Errors as they say them: llama.cpp (api_completion.c), Anthropic, Ollama. */
json_t *fault_peer(const struct fault *f);
json_t *fault_anthropic(const struct fault *f);
json_t *fault_ollama(const struct fault *f);
/* What answers of Ollama's share: times as text, and what a model is. */
json_t *ollama_time(int64_t seconds);
json_t *ollama_details(const char *arch, const char *type, uint64_t n_params);

#endif
