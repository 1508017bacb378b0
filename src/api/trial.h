/* trial.h -- kernels of a model's devices are tried before they are used. */
#ifndef PITH_API_TRIAL_H
#define PITH_API_TRIAL_H

#include "base/error.h"

/* Reads a prompt and a token behind it, once with all kernels and once with the plain ones of each
 * device alone (backend.h, without). What gives other logits, or fails, is left out by the whole
 * process from now on, and pith_model_info.note tells. PITH_DEVICE: it has ended a device, so the
 * model is to be opened anew; PITH_UNSUPPORTED: it is to be strict. */
pith_status trial_run(struct pith_model *m, struct pith_error *err);

#endif
