/* jinja_run.c -- what all that is done in a rendering needs: memory, steps, and a way to fail; and
 * where in the source that was. */
#include <stdarg.h>
#include <stdio.h>

#include "base/utf8.h"
#include "base/work.h"
#include "text/jinja/jinja_impl.h"

void jinja_where(struct slice s, size_t at, char *buf, size_t cap)
{
    size_t line = 1, begin = 0, column = 1;
    at = at < s.n ? at : s.n;
    for (size_t i = 0; i < at; i++) {
        if (s.p[i] == '\n') {
            line++;
            begin = i + 1;
        }
    }
    for (size_t i = begin; i < at; i++)
        column += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    size_t end = at;
    while (end < s.n && s.p[end] != '\n' && end - at < 60)
        end++;
    end = at + (s.n ? utf8_complete(s.p + at, end - at) : 0);
    snprintf(buf, cap, "line %zu, column %zu, at \"%.*s\"", line, column, (int)(end - at),
             s.n ? s.p + at : "");
}

struct jv vm_fail_as(struct jvm *vm, pith_status st, const char *what)
{
    char where[160];
    if (vm->failed)
        return (struct jv){0};
    vm->failed = st;
    jinja_where(vm->t->source, vm->t->code[vm->pc].at, where, sizeof where);
    error_set(vm->err, st, "template: %s: %s", where, what);
    return (struct jv){0};
}

struct jv vm_fail(struct jvm *vm, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return vm_fail_as(vm, PITH_FORMAT, what);
}

struct jv vm_no_memory(struct jvm *vm)
{
    return vm_fail_as(vm, PITH_NOMEM, "out of memory");
}

void *vm_alloc(struct jvm *vm, size_t bytes)
{
    uint64_t cost = size_align(bytes < SIZE_MAX - 64 ? bytes : SIZE_MAX - 64, 16) + 16;
    if (vm->failed)
        return NULL;
    if (cost > vm->left.memory) {
        vm_fail_as(vm, PITH_RANGE, "the values of this rendering need too much memory");
        return NULL;
    }
    vm->left.memory -= cost;
    void *p = arena_alloc(&vm->arena, bytes);
    if (!p)
        vm_no_memory(vm);
    return p;
}

void *vm_array(struct jvm *vm, size_t n, size_t item)
{
    uint64_t bytes;
    return vm_alloc(vm, size_mul(n, item, &bytes) ? SIZE_MAX : (size_t)bytes);
}

int vm_tick(struct jvm *vm, uint64_t steps)
{
    if (!work_tick(steps))
        vm_fail_as(vm, PITH_CANCELLED, "this rendering was cancelled");
    return !vm->failed;
}

int vm_charge(struct jvm *vm, uint64_t steps)
{
    if (steps > vm->left.steps)
        vm_fail_as(vm, PITH_RANGE, "this rendering takes too many steps");
    else
        vm->left.steps -= steps;
    return vm_tick(vm, steps);
}
