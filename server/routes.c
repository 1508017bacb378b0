/* routes.c -- every endpoint, one row each. The rows make the dispatch, GET /docs and GET /openapi.json. */
#include "api.h"

enum { DIRECT = ROUTE_DIRECT, OPEN = ROUTE_DIRECT | ROUTE_OPEN, MODEL = ROUTE_MODEL };

const struct route routes[] = {
    {"POST", "/v1/chat/completions", MODEL, E_CHAT, api_chat, "the next message of a conversation"},
    {"POST", "/v1/completions", MODEL, E_COMPLETE, api_completions, "text that goes on after a prompt"},
    {"POST", "/v1/embeddings", MODEL, E_EMBED, api_embeddings, "vectors of texts"},
    {"GET", "/v1/models", DIRECT | MODEL, 0, api_models, "the model this server has; 503 until it is loaded"},
    {"GET", "/v1/models/*", DIRECT | MODEL, 0, api_models, "one model"},
    {"POST", "/tokenize", MODEL, E_TOKENIZE, api_tokenize, "text to tokens"},
    {"POST", "/detokenize", MODEL, E_DETOKENIZE, api_detokenize, "tokens to text"},
    {"POST", "/apply-template", MODEL, E_TEMPLATE, api_apply_template, "a conversation as the text the model gets"},
    {"GET", "/props", DIRECT | MODEL, 0, api_props, "what the model and the server are set to"},
    {"GET", "/v1/report", MODEL, 0, api_report, "the execution report: what ran, where, how fast, and what fell back"},
    {"GET", "/health", OPEN, 0, api_health, "200 while the server lives"},
    {"GET", "/live", OPEN, 0, api_health, "the same"},
    {"GET", "/ready", OPEN, 0, api_ready, "200 when it can serve; 503 while it loads and while it shuts down"},
    {"GET", "/metrics", OPEN, 0, api_metrics, "counters for Prometheus"},
    {"GET", "/docs", OPEN, 0, api_docs, "endpoints and fields"},
    {"GET", "/openapi.json", OPEN, 0, api_openapi, "the same as an OpenAPI 3.1 file"},
    {"GET", "/", OPEN | ROUTE_PAGE, 0, api_web, "the web page"},
    {"GET", "/web/*", OPEN | ROUTE_PAGE, 0, api_web, "its files"},
    {0},
};
