/* trace.h -- which trace a request belongs to, by W3C Trace Context
 * (https://www.w3.org/TR/trace-context/): version 00 of the headers traceparent and tracestate. A
 * request is a span of its own in the trace of who asks, or the first one of a new trace. Nothing
 * is sent anywhere: the ids are in the access log and in the answer. */
#ifndef PITH_SERVER_TRACE_H
#define PITH_SERVER_TRACE_H

struct trace {
    char trace_id[33], span_id[17];
    char parent_id[17]; /* "": none */
    char flags[3];
    char state[513]; /* of who asks, handed back as it is; "": none */
};
/* From the headers (NULL: absent). What does not keep to the form is as if it were not there. */
void trace_begin(struct trace *t, const char *traceparent, const char *tracestate);
/* The header of the answer. */
void trace_parent(const struct trace *t, char out[56]);

#endif
