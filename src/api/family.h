/* family.h -- how the models of a template write calls and reasoning. */
#ifndef PITH_API_FAMILY_H
#define PITH_API_FAMILY_H

#include "base/error.h"

struct chat_format;
/* A row of chat_formats.def; for templates that belong to none what they write themselves, where
 * calls in it have a visible marker (chat_derive.h), found out once for each template. Never NULL.
 * t NULL: "generic". */
const struct chat_format *family_of(const pith_template *t);

#endif
