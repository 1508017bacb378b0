/* api.h -- the handlers of the endpoints, for the table in routes.c. A handler answers x, now or
 * later, and drops it once (those of ROUTE_DIRECT do not: they run on the thread of HTTP and answer
 * at once). */
#ifndef PITH_SERVER_API_H
#define PITH_SERVER_API_H

#include <jansson.h>
#include <stdint.h>

struct exchange;
struct fault;
struct server;

/* api_openai.c */
void api_chat(struct server *s, struct exchange *x);
void api_completions(struct server *s, struct exchange *x);
void api_chat_tokens(struct server *s, struct exchange *x);
/* api_completion.c */
void api_completion(struct server *s, struct exchange *x);
void api_infill(struct server *s, struct exchange *x);
json_t *fault_peer(const struct fault *f); /* as llama.cpp has it */
/* api_slots.c */
void api_slots(struct server *s, struct exchange *x);
void api_slot(struct server *s, struct exchange *x);
/* api_lora.c */
void api_lora(struct server *s, struct exchange *x);
void api_lora_set(struct server *s, struct exchange *x);
/* api_rerank.c */
void api_rerank(struct server *s, struct exchange *x);
/* api_responses.c */
void api_responses(struct server *s, struct exchange *x);
void api_input_tokens(struct server *s, struct exchange *x);
/* api_anthropic.c */
void api_messages(struct server *s, struct exchange *x);
void api_count_tokens(struct server *s, struct exchange *x);
json_t *fault_anthropic(const struct fault *f);
/* api_ollama.c */
void api_ollama_chat(struct server *s, struct exchange *x);
void api_ollama_generate(struct server *s, struct exchange *x);
void api_ollama_tags(struct server *s, struct exchange *x);
void api_ollama_ps(struct server *s, struct exchange *x);
/* What its answers share: times as text, and what a model is. */
json_t *ollama_time(int64_t seconds);
json_t *ollama_details(const char *arch, const char *type, uint64_t n_params);
json_t *fault_ollama(const struct fault *f);
void api_ollama_version(struct server *s, struct exchange *x);
/* api_show.c */
void api_ollama_show(struct server *s, struct exchange *x);
/* api_embeddings.c */
void api_ollama_embed(struct server *s, struct exchange *x);
void api_embeddings(struct server *s, struct exchange *x);
void api_embedding(struct server *s, struct exchange *x);
/* api_pith.c */
void api_models(struct server *s, struct exchange *x);
void api_tokenize(struct server *s, struct exchange *x);
void api_detokenize(struct server *s, struct exchange *x);
void api_apply_template(struct server *s, struct exchange *x);
void api_tokenizer_info(struct server *s, struct exchange *x);
void api_props(struct server *s, struct exchange *x);
void api_report(struct server *s, struct exchange *x);
void api_machine(struct server *s, struct exchange *x);
void api_load(struct server *s, struct exchange *x);
void api_unload(struct server *s, struct exchange *x);
void api_drain(struct server *s, struct exchange *x);
void api_health(struct server *s, struct exchange *x);
void api_live(struct server *s, struct exchange *x);
void api_ready(struct server *s, struct exchange *x);
void api_metrics(struct server *s, struct exchange *x);
void api_docs(struct server *s, struct exchange *x);
void api_openapi(struct server *s, struct exchange *x);
/* api_web.c */
void api_web(struct server *s, struct exchange *x);

#endif
