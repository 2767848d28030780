/* learnt.c: the object that says which profile was learnt from a namespace. Spec: STORE.md,
 * "Learning". Not for learning (learning.c). */
#include "formats/store/store.h"

#include "formats/io/hash.h"

#include <stdio.h>
#include <string.h>

#define LEARNT_HEAD "kvc learnt 1\nprofile "
#define LEARNT_NONE "none"

static const uint8_t no_profile[KVC_KEY_BYTES];

int kvc_learnt_is_none(const uint8_t sha256[KVC_KEY_BYTES]) {
    return memcmp(sha256, no_profile, sizeof no_profile) == 0;
}

size_t kvc_learnt_text(const uint8_t sha256[KVC_KEY_BYTES], char text[KVC_LEARNT_TEXT]) {
    char hex[2 * KVC_KEY_BYTES + 1] = LEARNT_NONE;
    if (!kvc_learnt_is_none(sha256)) kvc_hex(sha256, KVC_KEY_BYTES, hex);
    return (size_t)snprintf(text, KVC_LEARNT_TEXT, "%s%s\n", LEARNT_HEAD, hex);
}

int kvc_learnt_read(const void *data, size_t size, uint8_t sha256[KVC_KEY_BYTES],
                    struct kvc_error *e) {
    const size_t head = sizeof LEARNT_HEAD - 1, digits = 2 * KVC_KEY_BYTES;
    char text[KVC_LEARNT_TEXT];
    memset(sha256, 0, KVC_KEY_BYTES);
    for (size_t i = 0; size == head + digits + 1 && i < digits; i++) {
        const int digit = kvc_hex_digit(((const char *)data)[head + i]);
        sha256[i / 2] |= (uint8_t)((digit < 0 ? 0 : digit) << (i % 2 ? 0 : 4));
    }
    /* whatever is not what would be written is damaged */
    if (kvc_learnt_text(sha256, text) == size && memcmp(text, data, size) == 0) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "it does not name a profile that was learnt");
}
