/* pull_http.h -- one GET after the other, on libcurl: redirects followed here, so that what may
 * cross to another host is decided here.
 *
 * Schemes: https; http on this machine alone, and never after https. A token goes with requests to
 * its origin (scheme, host and port) and with no others, however they were redirected. Addresses
 * with a user or password are refused. At most 10 redirects. */
#ifndef PITH_CLI_PULL_HTTP_H
#define PITH_CLI_PULL_HTTP_H

#include <stddef.h>
#include <stdint.h>

struct http_answer { /* of the last request; what the server did not say is -1 or "" */
    long status;
    int64_t from, total; /* the first byte of the file in the body, and bytes of the whole file */
    char etag[256], modified[64];
    char sha256[65]; /* of the file, said by the first server when it sent us on (X-Linked-ETag) */
    double retry_after;  /* seconds */
    char message[256];   /* of an error */
    char location[4096]; /* where to go instead */
};

struct http_request {
    const char *url, *accept;
    const char *token, *origin; /* NULL: none; an address with its origin */
    int64_t from;               /* > 0: the bytes from there on */
    const char *if_range; /* not "": of the file with this tag or date, else from the beginning */
    double timeout;       /* seconds without a byte */
    /* The body of an answer 200 or 206. Returning 0 ends it (HTTP_STOPPED). */
    int (*on_data)(void *ctx, const struct http_answer *a, const char *p, size_t n);
    void (*on_tick)(void *ctx); /* about every second; may be NULL */
    void *ctx;
};

enum http_end {
    HTTP_DONE,    /* an answer of any status, whole */
    HTTP_BROKEN,  /* no answer or half of one: another try may help */
    HTTP_REFUSED, /* it will not */
    HTTP_STOPPED, /* by on_data or Ctrl-C */
};
/* Opens libcurl, before anything else here is called. 0: there is none that will do, and why [cap]
 * says so. */
int http_library(char *why, size_t cap);
struct http_client;
struct http_client *http_client_open(void); /* after http_library; NULL: no memory */
void http_client_close(struct http_client *h);
int http_same_origin(const char *a, const char *b); /* scheme, host and port of two addresses */
/* why [cap]: what went wrong, unless it is HTTP_DONE. */
enum http_end http_client_get(struct http_client *h, const struct http_request *q,
                              struct http_answer *a, char *why, size_t cap);

#endif
