/* utf8_locale.h: names in archives are UTF-8. libarchive converts them by the locale of the calling
 * thread, and refuses letters that are not ASCII in the C locale. Not for messages or numbers: only
 * the character type changes. */
#ifndef KVC_UTF8_LOCALE_H
#define KVC_UTF8_LOCALE_H

#include <locale.h>

struct kvc_utf8_locale {
    locale_t own, before; /* own 0: there is no C.UTF-8, and nothing was changed */
};

/* Sets the character type of this thread to UTF-8, until kvc_utf8_end(). */
static inline struct kvc_utf8_locale kvc_utf8_begin(void) {
    struct kvc_utf8_locale l = {.own = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0)};
    if (l.own) l.before = uselocale(l.own);
    return l;
}

static inline void kvc_utf8_end(struct kvc_utf8_locale *l) {
    if (!l->own) return;
    uselocale(l->before);
    freelocale(l->own);
}

#endif
