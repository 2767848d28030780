/* number.h: numbers as text with a point, in whatever locale and floating-point environment the
 * program is that calls the library: files, metadata, addresses and messages read the same
 * everywhere. The only place that asks the C
 * library to read or to print them. Not for the arguments of stages, whose digits are bounded
 * (args.h). */
#ifndef KVC_NUMBER_H
#define KVC_NUMBER_H

#include "codecs/float_env.h"

#include <locale.h>
#include <stddef.h>

/* Reads the finite decimal number that the text begins with: "5", "-2.5", "1e-3", ".5". White
 * space, hexadecimal digits, "inf" and "nan" begin none. Returns the rest of the text, or NULL
 * where there is no number, or one that is too large. */
const char *kvc_number_begin(const char *text, double *v);
/* Reads a text that is such a number and nothing else. Returns 0 or -1. */
int kvc_number_read(const char *text, double *v);

/* Prints v with `digits` significant digits, without zeros at the end, as "%.*g" does. Returns the
 * length of the whole text, as snprintf() does. */
int kvc_number_print(char *text, size_t size, int digits, double v);

/* Gives this thread numbers with a point, rounded to nearest, until kvc_point_end(), around calls
 * of libraries that follow the locale. */
struct kvc_point {
    fenv_t env;
    locale_t own, before; /* own 0: nothing was changed */
};
struct kvc_point kvc_point_begin(void);
void kvc_point_end(const struct kvc_point *p);

#endif
