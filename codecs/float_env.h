/* float_env.h: the floating-point environment in which blocks are coded and decoded: rounding to
 * nearest, subnormal numbers kept, no traps. A program may have another one, of which it may not
 * know: a library that was linked with -ffast-math sets it for all threads to come, and threads
 * inherit it. Decoded values would differ then, and what was packed be refused elsewhere. */
#ifndef KVC_FLOAT_ENV_H
#define KVC_FLOAT_ENV_H

#include <fenv.h>

/* Enters the environment of blocks, and returns the caller's, for kvc_float_env_leave(). */
static inline fenv_t kvc_float_env_enter(void) {
    fenv_t was;
    fegetenv(&was);
    fesetenv(FE_DFL_ENV);
    return was;
}

static inline void kvc_float_env_leave(const fenv_t *was) {
    fesetenv(was);
}

#endif
