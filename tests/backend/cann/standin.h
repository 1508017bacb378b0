/* standin.h -- tests of the CANN backend without an NPU: a library that stands in for CANN's
 * runtime (acl.c) and for its operators (ops.c), which the build puts beside the tests as one file.
 * It keeps memory that nobody else can touch, runs every operator in plain C, and not before
 * somebody waits for it, and looks whether the calls that it gets are in an order that CANN's
 * documentation allows. TEST_CANN=1: the machine's own libraries instead. */
#ifndef PITH_TESTS_BACKEND_CANN_STANDIN_H
#define PITH_TESTS_BACKEND_CANN_STANDIN_H

#include <stdint.h>

/* What tests ask of it. */
struct standin {
    uint64_t calls;     /* that can fail, since fail_at was set last */
    uint64_t fail_at;   /* this one fails; 0: none */
    uint64_t live;      /* allocations, streams, events, tensors, executors, graphs */
    uint64_t operators; /* that were issued or captured */
    uint64_t captured, replayed;
    int no_capture;  /* captures are refused */
    char fault[200]; /* the first call out of order, or operator that it does not take */
};

/* ---------------------------------------------------------------- between its two files */

enum { MOST_DIMS = 6, MOST_OPERANDS = 5 };
enum { PARAM_INVALID = 161002 };

struct view {
    int64_t dims[MOST_DIMS], strides[MOST_DIMS];
    int n_dims, type;
    uint64_t data; /* of the device */
};
struct task;
typedef int (*task_fn)(const struct task *t); /* 0: done */
struct task {
    task_fn fn;
    struct task *next;
    struct view t[MOST_OPERANDS];
    double number;
    int64_t integer;
    void *host; /* copies */
    uint64_t to, from, bytes;
    int kind;
    uint64_t space, space_bytes;
    void *event, *graph;
    uint64_t value;
};

extern struct standin standin;
/* 1: the call fails as was asked for. */
int standin_fails(void);
void standin_fault(const char *what, const char *who);
/* Where bytes of the device are, NULL: they are of no allocation. */
uint8_t *standin_at(uint64_t device, uint64_t n);
int standin_type_bytes(int type);
/* Puts a copy of the task into a stream, or into what it captures. */
int standin_put(void *stream, const struct task *t);

#endif
