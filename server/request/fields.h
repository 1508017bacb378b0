/* fields.h -- bodies against fields.def. */
#ifndef PITH_SERVER_REQUEST_FIELDS_H
#define PITH_SERVER_REQUEST_FIELDS_H

#include "server/json.h"

struct exchange;
struct server;

/* Endpoints, as bits of the column "endpoints" of fields.def. */
enum {
    E_CHAT = 1,
    E_COMPLETE = 2,
    E_EMBED = 4,
    E_TOKENIZE = 8,
    E_DETOKENIZE = 16,
    E_TEMPLATE = 32,
    E_RESPONSES = 64,
    E_MESSAGES = 128,
    E_COUNT = 256,
    E_OLLAMA_CHAT = 512,
    E_OLLAMA_GENERATE = 1024,
    E_OLLAMA_SHOW = 2048,
    E_OLLAMA_EMBED = 4096,
    E_OLLAMA_OPTIONS = 8192, /* the object `options` */
    E_LOAD = 16384,
    E_UNLOAD = 32768,
    E_STREAM_OPTIONS = 65536, /* the object `stream_options` */
    E_COMPLETION = 131072,
    E_INFILL = 262144,
    E_PEER = E_COMPLETION | E_INFILL, /* llama.cpp's own */
    E_SLOTS = 524288,
    E_RERANK = 1048576,
    E_LORA = 2097152,
    E_CONTROL = 4194304,
    E_TEXT = 8388608,            /* the object `text` */
    E_REASONING = 16777216,      /* `reasoning` of responses */
    E_CHAT_REASONING = 33554432, /* and of chats */
    E_OUTPUT = 67108864,         /* `output_config` */
    E_THINKING = 134217728,      /* `thinking` */
    /* Of these no default is the operator's. */
    E_INNER = E_TEXT | E_REASONING | E_CHAT_REASONING | E_OUTPUT | E_THINKING,
    E_OLLAMA = E_OLLAMA_CHAT | E_OLLAMA_GENERATE,
    E_MADE = E_CHAT | E_COMPLETE,                                      /* OpenAI's older two */
    E_TALKS = E_CHAT | E_RESPONSES | E_MESSAGES | E_OLLAMA_CHAT,       /* conversations */
    E_STREAMS = E_MADE | E_RESPONSES | E_MESSAGES | E_OLLAMA | E_PEER, /* all that make text */
    /* Text is made by the only model whatever its name in the request; vectors and what changes the
     * server want the very one. */
    E_ANY_MODEL = E_STREAMS | E_TOKENIZE | E_DETOKENIZE | E_TEMPLATE | E_COUNT | E_CONTROL,
    E_TEXTS = E_MADE | E_RESPONSES | E_MESSAGES | E_PEER, /* text, but for Ollama's */
    E_SAMPLES = E_MADE | E_RESPONSES | E_MESSAGES | E_OLLAMA_OPTIONS |
                E_PEER, /* and where they have how to choose tokens */
};

enum field_id {
#define FIELD(id, ...) F_##id,
#include "server/fields.def"
#undef FIELD
    N_FIELDS
};
struct fields {
    json_t *body;              /* owned */
    json_t *put;               /* a list of what fields_put took */
    const json_t *v[N_FIELDS]; /* NULL: absent or null */
    unsigned endpoint;         /* that of the body */
    unsigned said;             /* what the body itself speaks of, as bits (fields.c) */
    struct exchange *x;        /* whose body it is, NULL: nobody's */
    const char *(*nearest)(const char *word,
                           const char *const *candidates); /* server_params.nearest */
};
/* "field=value" texts, each value JSON or else a text, as an object; checked against the rows by
 * that name. NULL: *err. */
json_t *fields_defaults(const char *const *texts, struct pith_error *err);
/* Checks the body of x against the rows of an endpoint: names, types, ranges. */
int fields_read(struct fields *f, unsigned endpoint, struct exchange *x, struct fault *fault);
/* What the operator says (--default) where the body does not: neither by the field itself nor by
 * another one that says the same or excludes it. */
int fields_of_nothing(struct fields *f, unsigned endpoint, const struct server *s,
                      struct fault *fault);
/* The members of the object that field `id` is, by the rows of an endpoint of their own. */
int fields_nested(struct fields *f, enum field_id id, unsigned endpoint, struct fault *fault);
/* As if the body had said so; takes v (NULL: out of memory), which is not checked. */
int fields_put(struct fields *f, enum field_id id, json_t *v, struct fault *fault);
void fields_free(struct fields *f);
int64_t field_int(const struct fields *f, enum field_id id); /* value, else default */
double field_real(const struct fields *f, enum field_id id);
int field_bool(const struct fields *f, enum field_id id);
const char *field_text(const struct fields *f, enum field_id id); /* NULL: absent */
size_t texts_count(const json_t *v); /* of a field that is a text or a list of them */
const json_t *texts_at(const json_t *v, size_t i);
const char *field_name(enum field_id id);
json_t *
field_schema(enum field_id id,
             unsigned endpoint); /* a row as a JSON Schema; NULL: the endpoint has no such field */
json_t *fields_docs(unsigned endpoint); /* its rows as JSON */

#endif
