/* fuzz_store_name.c: texts of a store from any bytes: names of objects, URLs and chains of tiers,
 * configurations, facts of namespaces. */
#include "tests/fuzz/fuzz.h"

#include "formats/api/kvc.h"
#include "formats/store/dir/conf.h"
#include "formats/store/object.h"

static void names(const char *text) {
    struct kvc_object o;
    char again[KVC_OBJECT_NAME];
    if (kvc_object_parse(text, &o)) return;
    kvc_object_name(&o, again);
    if (strcmp(again, text) != 0) fuzz_die("a name is not the one that it was read from", NULL);
}

static void urls(const char *text) {
    struct kvc_url u;
    struct kvc_error e;
    struct kvc_conf c = kvc_conf_default;
    char **list;
    const int n = kvc_url_split(text, &list, &e);
    if (n < 1) fuzz_die("a chain of no tiers", NULL);
    for (int i = 0; i < n; i++) {
        if (kvc_url_parse(&u, list[i], &e)) continue;
        if (!*u.place) fuzz_die("a tier without a place", NULL);
        kvc_conf_take(&c, &u, &e);
        kvc_url_rest(&u, &e);
        kvc_url_free(&u);
    }
    free(list);
}

static void configurations(const char *text) {
    struct kvc_conf c, again;
    struct kvc_error e;
    char printed[2048];
    if (kvc_conf_parse(&c, text, &e)) return;
    kvc_conf_print(&c, printed, sizeof printed);
    if (kvc_conf_parse(&again, printed, &e)) fuzz_die("a printed configuration does not parse", &e);
    if (!kvc_conf_equal(&c, &again)) fuzz_die("a configuration changes when it is printed", NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    struct kvc_error e;
    char *text = fuzz_alloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    names(text);
    urls(text);
    configurations(text);
    kvc_namespace_read(text, size, &facts, &e);
    free(text);
    return 0;
}
