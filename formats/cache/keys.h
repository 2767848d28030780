/* keys.h: the metadata keys that kvc itself writes. Not for their meaning (FORMAT.md, "Metadata
 * keys"). */
#ifndef KVC_KEYS_H
#define KVC_KEYS_H

#define KVC_KEY_PRODUCER "producer"             /* text: "kvc 1.0.0" */
#define KVC_KEY_SOURCE_FORMAT "source.format"   /* text: "llama.cpp GGSQ", "safetensors", ... */
#define KVC_KEY_SOURCE_VERSION "source.version" /* u64, when the format has one */
#define KVC_KEY_SOURCE_BYTES "source.bytes"     /* u64: size of the source file */
#define KVC_KEY_PROFILE "profile.sha256" /* bytes (32): of the profile file that decoding needs */
#define KVC_KEY_PROFILE_MODEL "profile.model" /* text: name of the profile's model */
/* text: fit of profile and cache: "good", "doubtful", "bad", "unknown" */
#define KVC_KEY_PROFILE_FIT "profile.fit"
/* f64: mean square of K's coefficients divided by the profile's variance */
#define KVC_KEY_PROFILE_FIT_K "profile.fit-k"
#define KVC_KEY_PROFILE_FIT_V "profile.fit-v" /* f64: the same for V */
#define KVC_KEY_RECIPE "recipe"               /* text: canonical recipe */
/* text: lossy recipes that the values went through before (values.h) */
#define KVC_KEY_VALUES_RECIPE "values.recipe"
/* bytes (32 each): the profiles of these recipes */
#define KVC_KEY_VALUES_PROFILE "values.profile"
/* bytes (32): content id of the container out of which they came from the last of these recipes */
#define KVC_KEY_VALUES_CONTENT "values.content"

#define KVC_KEY_MODEL_NAME "model.name" /* text */
/* text, as the weights file spells it: "llama", "gemma3" */
#define KVC_KEY_MODEL_ARCH "model.architecture"
#define KVC_KEY_MODEL_LAYERS "model.layers"         /* u64 */
#define KVC_KEY_MODEL_HEADS "model.heads"           /* u64: query heads */
#define KVC_KEY_MODEL_KV_HEADS "model.kv-heads"     /* u64 */
#define KVC_KEY_MODEL_HEAD_DIM "model.head-dim"     /* u64: of K */
#define KVC_KEY_MODEL_HEAD_DIM_V "model.head-dim-v" /* u64: of V, when it differs */
#define KVC_KEY_MODEL_ADAPTERS "model.adapters"     /* text: LoRA names, comma-separated */
/* bytes (32 each): SHA-256 of the adapters' files */
#define KVC_KEY_MODEL_ADAPTERS_HASH "model.adapters.sha256"
/* bytes (32): "model.fingerprint." kind "." algorithm; kind gguf|safetensors, algorithm
 * sampled|full */
#define KVC_KEY_FINGERPRINT "model.fingerprint."
#define KVC_KEY_TOKENIZER "tokenizer.sha256" /* bytes (32): SHA-256 of the vocabulary */

#define KVC_KEY_ROPE_K "rope.k" /* text: "post" or "pre" */
/* text: "halves", "interleaved", "none"; absent: unknown */
#define KVC_KEY_ROPE_PAIRING "rope.pairing"
/* bool: true: the pairing is the habit of the format and was not recorded */
#define KVC_KEY_ROPE_ASSUMED "rope.pairing-assumed"
/* text: "default", "linear", "yarn", "llama3", "longrope", "dynamic", "mrope",
 * "imrope" */
#define KVC_KEY_ROPE_TYPE "rope.type"
#define KVC_KEY_ROPE_THETA "rope.theta"   /* f64 */
#define KVC_KEY_ROPE_DIM "rope.dim"       /* u64: rotated channels of a head */
#define KVC_KEY_ROPE_FACTOR "rope.factor" /* f64: scaling factor */
/* u64: positions of training before scaling */
#define KVC_KEY_ROPE_ORIGINAL "rope.original-context"
/* text: JSON object: what else config.json says of the scaling */
#define KVC_KEY_ROPE_SCALING "rope.scaling"
/* u64s: pairs of each coordinate of a position (M-RoPE) */
#define KVC_KEY_ROPE_SECTIONS "rope.sections"

/* text: whose RoPE it is, where nobody knows its parameters */
#define KVC_KEY_ROPE_SOURCE "rope.source"

/* text: the factors of values of 8 bits, of K and latents, of V: "0.5", "0.5,0.25" (layers),
 * "0.5:0.4,0.3:0.2" (heads); scales.h */
#define KVC_KEY_SCALE_K "scale.k"
#define KVC_KEY_SCALE_V "scale.v"
/* text: whose scales they are, where nobody knows them */
#define KVC_KEY_SCALE_SOURCE "scale.source"

#define KVC_KEY_HADAMARD_K "hadamard.k" /* u64: tile, 0: not rotated; absent: unknown */
#define KVC_KEY_HADAMARD_V "hadamard.v"
/* text: place in a layer of the hidden states, in the source's words */
#define KVC_KEY_HIDDEN_STATES "hidden.states"
#define KVC_KEY_WINDOW "sliding.window" /* u64: tokens */
/* bool: true: layers are shorter than others, and no name says why */
#define KVC_KEY_WINDOW_ASSUMED "sliding.assumed"
/* bool: true: the file says them, though it has more ids than rows */
#define KVC_KEY_POSITIONS_GIVEN "positions.given"
/* text: positions that are no padding, "100:400" or "scattered" */
#define KVC_KEY_ROWS_USED "rows.used"
/* text: arrays of the file whose meaning is unknown, kept as bytes */
#define KVC_KEY_OTHER_ARRAYS "source.arrays"
#define KVC_KEY_PAGE_SIZE "page.size"           /* u64 */
#define KVC_KEY_SHARD_RANK "shard.rank"         /* u64: from 0 */
#define KVC_KEY_SHARD_RANKS "shard.ranks"       /* u64 */
#define KVC_KEY_SHARD_SET "shard.set"           /* bytes (16): of all shards of one cache */
#define KVC_KEY_HEADS_KNOWN "cache.heads-known" /* bool: false: heads = 1 means "unknown" */
/* bool: false: layer numbers are in cache order */
#define KVC_KEY_LAYERS_KNOWN "cache.layers-known"

/* u64: further coordinates of positions (M-RoPE), the first words of each cell */
#define KVC_KEY_CELLS_COORDINATES "cells.coordinates"
#define KVC_KEY_TOKENS_FIRST "tokens.first" /* u64: position of the first token id; absent: 0 */
/* text: the model identity at the start of the chain of prefix keys */
#define KVC_KEY_PREFIX_IDENTITY "prefix.identity"
/* bytes (32): the prefix key at tokens.first; absent: the chain begins at 0 */
#define KVC_KEY_PREFIX_PARENT "prefix.parent"
/* bytes: what prefix keys take beside token ids (prefix_extras.h) */
#define KVC_KEY_PREFIX_EXTRAS "prefix.extras"
/* bytes (32): the namespace of the file (prefix_space.h) */
#define KVC_KEY_PREFIX_SPACE "prefix.space"

/* bytes (1 to 256): the name under which a prefix store keeps the cache */
#define KVC_KEY_STORE_NAME "store.name"

#define KVC_KEY_LLAMA_TOKEN_FORM "llama.token-form" /* text: "plain", "server" or "none" */
#define KVC_KEY_LLAMA_STREAMS "llama.streams"       /* u64 */
/* u64: the only stream that has cells; absent: 0, or several have */
#define KVC_KEY_LLAMA_STREAM "llama.stream"
#define KVC_KEY_LLAMA_TRANSPOSED_V "llama.transposed-v" /* bool */

#endif
