/* hidden_states.h: parses the text that says where in a layer hidden states were taken. Not for
 * metadata (facts.h), and not for finding or reading the tensors (formats/model/rebuild_source.h).
 */
#ifndef KVC_HIDDEN_STATES_H
#define KVC_HIDDEN_STATES_H

/* Relative to the norm before attention. The numbers are those of codecs/rebuild.h. */
enum kvc_hidden_place {
    KVC_HIDDEN_UNKNOWN = -1,
    KVC_HIDDEN_BEFORE_NORM = 0,
    KVC_HIDDEN_AFTER_NORM = 1
};

/* Parses the value of the metadata key hidden.states, which is a text in the source file's own
 * words: "after ... norm" or "before ... norm", with other words between and around. Returns
 * KVC_HIDDEN_UNKNOWN if the text has neither or contradicts itself. */
enum kvc_hidden_place kvc_hidden_place_parse(const char *text);

#endif
