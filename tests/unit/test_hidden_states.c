/* test_hidden_states.c: where hidden states were taken, by the words of the files that hold them.
 */
#include "formats/cache/hidden_states.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void reads_words(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum kvc_hidden_place place;
    } cases[] = {
        {"input of k_proj and v_proj, after the attention RMSNorm", KVC_HIDDEN_AFTER_NORM},
        {"after-norm", KVC_HIDDEN_AFTER_NORM},
        {"After input_layernorm", KVC_HIDDEN_AFTER_NORM},
        {"input of the layer, before its norm", KVC_HIDDEN_BEFORE_NORM},
        {"BEFORE LayerNorm", KVC_HIDDEN_BEFORE_NORM},
        {"before attention, after the RMSNorm (input_layernorm)", KVC_HIDDEN_AFTER_NORM},
        {"after the embedding, before the norm", KVC_HIDDEN_BEFORE_NORM},
        {"output of the norm, before k_proj", KVC_HIDDEN_UNKNOWN},
        {"after the attention norm, before the final norm", KVC_HIDDEN_UNKNOWN},
        {"after attention", KVC_HIDDEN_UNKNOWN},
        {"norm", KVC_HIDDEN_UNKNOWN},
        {"", KVC_HIDDEN_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (kvc_hidden_place_parse(cases[i].text) != cases[i].place) fail_msg("%s", cases[i].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
