/* routes.c -- every endpoint, one row each. The rows make the dispatch, GET /docs and GET /openapi.json. */
#include "api.h"

enum { DIRECT = ROUTE_DIRECT, OPEN = ROUTE_DIRECT | ROUTE_OPEN, MODEL = ROUTE_MODEL, OLLAMA = ROUTE_MODEL | ROUTE_OLLAMA, WAITS = ROUTE_MODEL | ROUTE_WAITS };

const struct route routes[] = {
    {"POST", "/v1/chat/completions", MODEL, E_CHAT, api_chat, "the next message of a conversation"},
    {"POST", "/v1/completions", MODEL, E_COMPLETE, api_completions, "text that goes on after a prompt"},
    {"POST", "/v1/responses", MODEL, E_RESPONSES, api_responses, "the answer to items, as OpenAI's newer interface has it; nothing is stored"},
    {"POST", "/v1/responses/input_tokens", MODEL, E_RESPONSES, api_input_tokens, "how many tokens they have"},
    {"POST", "/v1/messages", MODEL | ROUTE_ANTHROPIC, E_MESSAGES, api_messages, "the next message of a conversation, as Anthropic has it"},
    {"POST", "/v1/messages/count_tokens", MODEL | ROUTE_ANTHROPIC, E_COUNT, api_count_tokens, "how many tokens such a conversation has"},
    {"POST", "/v1/embeddings", MODEL, E_EMBED, api_embeddings, "vectors of texts"},
    {"POST", "/api/chat", OLLAMA, E_OLLAMA_CHAT, api_ollama_chat, "the next message of a conversation, as Ollama has it"},
    {"POST", "/api/generate", OLLAMA, E_OLLAMA_GENERATE, api_ollama_generate, "the answer to one message, or text behind a raw prompt"},
    {"POST", "/api/embed", OLLAMA, E_OLLAMA_EMBED, api_ollama_embed, "vectors of texts"},
    {"POST", "/api/embeddings", OLLAMA, E_OLLAMA_EMBED, api_ollama_embed, "the older form of it, for one prompt"},
    {"POST", "/api/show", OLLAMA, E_OLLAMA_SHOW, api_ollama_show, "what a model is"},
    {"GET", "/api/tags", DIRECT | OLLAMA, 0, api_ollama_tags, "the models there are"},
    {"GET", "/api/ps", DIRECT | OLLAMA, 0, api_ollama_ps, "those that are loaded"},
    {"GET", "/api/version", DIRECT | ROUTE_OLLAMA, 0, api_ollama_version, "the version of the server"},
    {"GET", "/v1/models", DIRECT | MODEL, 0, api_models, "the models this server has, and which are loaded; 503 until it can serve"},
    {"GET", "/v1/models/*", DIRECT | MODEL, 0, api_models, "one model"},
    {"POST", "/tokenize", MODEL, E_TOKENIZE, api_tokenize, "text to tokens"},
    {"POST", "/detokenize", MODEL, E_DETOKENIZE, api_detokenize, "tokens to text"},
    {"GET", "/tokenizer_info", DIRECT | MODEL, 0, api_tokenizer_info, "its start and end tokens and its template"},
    {"POST", "/apply-template", MODEL, E_TEMPLATE, api_apply_template, "a conversation as the text the model gets"},
    {"GET", "/props", DIRECT | MODEL, 0, api_props, "what the model and the server are set to"},
    {"GET", "/v1/report", WAITS, 0, api_report, "the execution report: what ran, where, how fast, and what fell back"},
    {"GET", "/v1/machine", WAITS, 0, api_machine, "what this machine allows: bytes read and operations per second; measured once, while nothing runs"},
    {"POST", "/admin/load", MODEL | ROUTE_ADMIN, E_LOAD, api_load, "load a model; answers when it is there"},
    {"POST", "/admin/unload", ROUTE_ADMIN, E_UNLOAD, api_unload, "unload a model when its requests have ended"},
    {"POST", "/admin/drain", DIRECT | ROUTE_ADMIN, 0, api_drain, "take no new requests, let those that run end, then exit, as with SIGTERM"},
    {"GET", "/health", OPEN, 0, api_health, "200 while the server lives"},
    {"GET", "/live", OPEN, 0, api_health, "the same"},
    {"GET", "/ready", OPEN, 0, api_ready, "200 when it can serve; 503 while it loads and while it shuts down"},
    {"GET", "/metrics", DIRECT | ROUTE_METRICS, 0, api_metrics, "counters for Prometheus"},
    {"GET", "/docs", OPEN, 0, api_docs, "endpoints and fields"},
    {"GET", "/openapi.json", OPEN, 0, api_openapi, "the same as an OpenAPI 3.1 file"},
    {"GET", "/", OPEN | ROUTE_PAGE, 0, api_web, "the web page"},
    {"GET", "/web/*", OPEN | ROUTE_PAGE, 0, api_web, "its files"},
    {0},
};

int route_is_open(const struct server *s, const struct route *r)
{
    return (r->flags & ROUTE_OPEN) || ((r->flags & ROUTE_METRICS) && s->p.open_metrics);
}
