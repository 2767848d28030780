/* json_text.h: JSON from and to text, in any locale: jansson reads and prints numbers by the locale
 * of the program, and stops the program where a decimal point has several bytes. Not for the
 * meaning of JSON. */
#ifndef KVC_JSON_TEXT_H
#define KVC_JSON_TEXT_H

#include <jansson.h>
#include <stdint.h>

/* As json_loadb() and json_dumps(). */
json_t *kvc_json_load(const void *text, size_t size, size_t flags, json_error_t *error);
char *kvc_json_dump(const json_t *root, size_t flags);
/* Reads an integer of at least 0. Returns 0 or -1. */
int kvc_json_count(const json_t *v, uint64_t *count);

#endif
