/* schema_null.c -- keywords that are null, as writers of schemas leave those that are not set
 * ("properties": null), are taken out where their value can never be null. What is a keyword, and
 * what the name of a property, depends on the way there, so the way is walked from the root. */
#include "text/grammar/schema/schema_impl.h"

/* What a keyword's value has in it. */
enum inside { NOTHING, SCHEMA, LIST, NAMED };

static const struct {
    const char *name;
    enum inside inside; /* SCHEMA: a list of them as well */
} keywords[] = {
    {"items", SCHEMA},
    {"additionalItems", SCHEMA},
    {"additionalProperties", SCHEMA},
    {"unevaluatedItems", SCHEMA},
    {"unevaluatedProperties", SCHEMA},
    {"propertyNames", SCHEMA},
    {"contains", SCHEMA},
    {"contentSchema", SCHEMA},
    {"not", SCHEMA},
    {"if", SCHEMA},
    {"then", SCHEMA},
    {"else", SCHEMA},
    {"anyOf", LIST},
    {"oneOf", LIST},
    {"allOf", LIST},
    {"prefixItems", LIST},
    {"properties", NAMED},
    {"patternProperties", NAMED},
    {"dependentSchemas", NAMED},
    {"$defs", NAMED},
    {"definitions", NAMED},
    {"type", NOTHING},
    {"enum", NOTHING},
    {"$ref", NOTHING},
    {"format", NOTHING},
    {"pattern", NOTHING},
    {"minLength", NOTHING},
    {"maxLength", NOTHING},
    {"minimum", NOTHING},
    {"maximum", NOTHING},
    {"exclusiveMinimum", NOTHING},
    {"exclusiveMaximum", NOTHING},
    {"multipleOf", NOTHING},
    {"minItems", NOTHING},
    {"maxItems", NOTHING},
    {"uniqueItems", NOTHING},
    {"minContains", NOTHING},
    {"maxContains", NOTHING},
    {"required", NOTHING},
    {"minProperties", NOTHING},
    {"maxProperties", NOTHING},
    {"dependentRequired", NOTHING},
    {"dependencies", NOTHING},
    {"nullable", NOTHING},
    {"contentEncoding", NOTHING},
    {"contentMediaType", NOTHING},
    {"$id", NOTHING},
    {"$schema", NOTHING},
    {"$anchor", NOTHING},
    {"$dynamicRef", NOTHING},
    {"$dynamicAnchor", NOTHING},
    {"$vocabulary", NOTHING},
    {"discriminator", NOTHING},
};

static size_t keyword_of(struct slice key)
{
    size_t i = 0, n = sizeof keywords / sizeof *keywords;
    while (i < n && !slice_eq_z(key, keywords[i].name))
        i++;
    return i;
}

/* At most JTREE_DEPTH deep. */
static void drop(struct rules *r, struct jtree *schema)
{
    size_t n = sizeof keywords / sizeof *keywords;
    struct jtree **at = &schema->first, *k;
    if (schema->kind != JTREE_OBJECT || !rules_spend(r, 1 + 4 * (uint64_t)schema->n))
        return;
    while ((k = *at)) {
        size_t i = keyword_of(k->key);
        if (i < n && k->kind == JTREE_NULL) {
            *at = k->next;
            schema->n--;
            continue;
        }
        enum inside inside = i < n ? keywords[i].inside : NOTHING;
        if (inside == SCHEMA)
            drop(r, k);
        if (inside == NAMED ? k->kind == JTREE_OBJECT : inside && k->kind == JTREE_ARRAY)
            for (struct jtree *v = k->first; v; v = v->next)
                drop(r, v);
        at = &k->next;
    }
}

void schema_drop_nulls(struct rules *r, struct jtree *schema)
{
    if (schema)
        drop(r, schema);
}
