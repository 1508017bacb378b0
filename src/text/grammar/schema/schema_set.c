/* schema_set.c -- sets of rules that come in any order (rules.h), for members and items. */
#include "text/grammar/schema/schema_impl.h"

uint32_t schema_named_rule(struct schema *s, struct slice name)
{
    uint32_t rule = rules_new(s->r, name);
    if (rules_ok(s->r))
        s->r->rule[rule].defined = 1;
    return rules_ok(s->r) ? rule : 0;
}

/* A mark and the space behind it. */
static uint32_t mark_rule(struct schema *s, const char *mark, int space)
{
    uint32_t rule = schema_named_rule(s, slice_of(mark));
    if (!rules_ok(s->r))
        return 0;
    uint32_t at = rules_text(s->r, s->r->rule[rule].start, mark, 1);
    rules_edge(s->r, space ? schema_space(s, at) : at, s->r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

struct rules_set *schema_new_set(struct schema *s, uint32_t n, const char *close)
{
    struct rules_set *set = arena_alloc(&s->r->arena, sizeof *set + n * sizeof set->v[0]);
    if (!set) {
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
        return NULL;
    }
    *set = (struct rules_set){.comma = mark_rule(s, ",", 1),
                              .close = mark_rule(s, close, 0),
                              .extra = RULES_NONE,
                              .max = RULES_ENDLESS};
    return set;
}
