/* hidden_states.c: parses the text that says where in a layer hidden states were taken. Not for
 * their tensors. */
#include "formats/cache/hidden_states.h"

#include <string.h>
#include <strings.h>

/* The words that relate states to a norm. Case does not count. */
static const struct {
    const char *word;
    enum kvc_hidden_place place;
} spellings[] = {{"after", KVC_HIDDEN_AFTER_NORM}, {"before", KVC_HIDDEN_BEFORE_NORM}};
static const char norm[] = "norm"; /* also the end of RMSNorm, LayerNorm and input_layernorm */

/* Returns the place that the last of these words in [text, end) names. */
static enum kvc_hidden_place last_word(const char *text, const char *end) {
    enum kvc_hidden_place place = KVC_HIDDEN_UNKNOWN;
    for (; text < end; text++)
        for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
            if (strncasecmp(text, spellings[i].word, strlen(spellings[i].word)) == 0)
                place = spellings[i].place;
    return place;
}

enum kvc_hidden_place kvc_hidden_place_parse(const char *text) {
    enum kvc_hidden_place found = KVC_HIDDEN_UNKNOWN;
    for (const char *at = text; *at; at++) {
        if (strncasecmp(at, norm, strlen(norm)) != 0) continue;
        const enum kvc_hidden_place place = last_word(text, at);
        if (place != KVC_HIDDEN_UNKNOWN && found != KVC_HIDDEN_UNKNOWN && place != found)
            return KVC_HIDDEN_UNKNOWN;
        if (place != KVC_HIDDEN_UNKNOWN) found = place;
        text = at; /* a word is about the norm that follows it */
    }
    return found;
}
