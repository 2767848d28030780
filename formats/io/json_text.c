/* json_text.c: calls jansson with numbers that have a point. */
#include "formats/io/json_text.h"

#include "codecs/number.h"

json_t *kvc_json_load(const void *text, size_t size, size_t flags, json_error_t *error) {
    const struct kvc_point point = kvc_point_begin();
    json_t *root = json_loadb(text, size, flags, error);
    kvc_point_end(&point);
    return root;
}

char *kvc_json_dump(const json_t *root, size_t flags) {
    const struct kvc_point point = kvc_point_begin();
    char *text = json_dumps(root, flags);
    kvc_point_end(&point);
    return text;
}

int kvc_json_count(const json_t *v, uint64_t *count) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return -1;
    *count = (uint64_t)json_integer_value(v);
    return 0;
}
