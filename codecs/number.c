/* number.c: reads and prints numbers in the C locale. */
#include "codecs/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvc_point kvc_point_begin(void) {
    struct kvc_point p = {.env = kvc_float_env_enter(),
                          .own = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (p.own) p.before = uselocale(p.own);
    return p;
}

void kvc_point_end(const struct kvc_point *p) {
    kvc_float_env_leave(&p->env);
    if (!p->own) return;
    uselocale(p->before);
    freelocale(p->own);
}

static size_t digits_of(const char *text) {
    return strspn(text, "0123456789");
}

/* Returns the characters of the number that the text begins with; 0 where it begins with none. */
static size_t length_of(const char *text) {
    const size_t sign = *text == '-' || *text == '+', whole = digits_of(text + sign);
    size_t n = sign + whole, decimals = 0;
    if (text[n] == '.') decimals = digits_of(text + n + 1);
    if (!whole && !decimals) return 0;
    if (text[n] == '.') n += 1 + decimals;
    if (text[n] != 'e' && text[n] != 'E') return n;
    const size_t exponent = n + 1 + (text[n + 1] == '-' || text[n + 1] == '+');
    return digits_of(text + exponent) ? exponent + digits_of(text + exponent) : n;
}

const char *kvc_number_begin(const char *text, double *v) {
    const size_t n = length_of(text);
    char *end;
    if (!n) return NULL;
    const struct kvc_point point = kvc_point_begin();
    const double x = strtod(text, &end);
    kvc_point_end(&point);
    if (end != text + n || !isfinite(x)) return NULL; /* "0x10" is longer for strtod() */
    *v = x;
    return end;
}

int kvc_number_read(const char *text, double *v) {
    double x;
    const char *rest = kvc_number_begin(text, &x);
    if (!rest || *rest) return -1;
    *v = x;
    return 0;
}

int kvc_number_print(char *text, size_t size, int digits, double v) {
    const struct kvc_point point = kvc_point_begin();
    const int n = snprintf(text, size, "%.*g", digits, v);
    kvc_point_end(&point);
    return n;
}
