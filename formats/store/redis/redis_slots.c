/* redis_slots.c: the cluster's arithmetic and its words. Sources: Redis cluster specification, "Key
 * distribution model" and "MOVED redirection"; command reference, CLUSTER SLOTS. */
#include "formats/store/redis/redis_state.h"

#include <stdlib.h>
#include <string.h>

/* CRC16-CCITT (XMODEM): polynomial 0x1021, initial value 0, without reflection. */
uint16_t kvc_redis_crc16(const char *text, size_t n) {
    unsigned crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned)(uint8_t)text[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1;
    }
    return (uint16_t)crc;
}

unsigned kvc_redis_slot(const char *key) {
    return kvc_redis_crc16(key, strlen(key)) % KVC_REDIS_SLOTS;
}

enum kvc_redis_verdict kvc_redis_judge(const char *error) {
    static const struct {
        const char *word;
        enum kvc_redis_verdict verdict;
    } known[] = {{"MOVED", KVC_REDIS_MOVED},         {"ASK", KVC_REDIS_ASK},
                 {"TRYAGAIN", KVC_REDIS_AGAIN},      {"READONLY", KVC_REDIS_STALE},
                 {"MASTERDOWN", KVC_REDIS_STALE},    {"CLUSTERDOWN", KVC_REDIS_UNUSABLE},
                 {"LOADING", KVC_REDIS_UNUSABLE},    {"OOM", KVC_REDIS_UNUSABLE},
                 {"NOAUTH", KVC_REDIS_UNUSABLE},     {"WRONGPASS", KVC_REDIS_UNUSABLE},
                 {"NOPERM", KVC_REDIS_UNUSABLE},     {"MISCONF", KVC_REDIS_UNUSABLE},
                 {"NOREPLICAS", KVC_REDIS_UNUSABLE}, {"BUSY", KVC_REDIS_UNUSABLE},
                 {"DENIED", KVC_REDIS_UNUSABLE},     {"UNKILLABLE", KVC_REDIS_UNUSABLE}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = strlen(known[i].word);
        if (strncmp(error, known[i].word, n) == 0 && (error[n] == ' ' || !error[n]))
            return known[i].verdict;
    }
    /* a server without a password refuses AUTH so; with too many clients it says the second */
    if (strstr(error, "AUTH") || strstr(error, "max number of clients")) return KVC_REDIS_UNUSABLE;
    return KVC_REDIS_REFUSED;
}

int kvc_redis_redirection(const char *error, struct kvc_redis_place_of *to) {
    const char *p = strchr(error, ' ');
    char *end;
    if (!p || p[1] < '0' || p[1] > '9') return -1;
    const unsigned long slot = strtoul(p + 1, &end, 10);
    if (*end != ' ' || slot >= KVC_REDIS_SLOTS) return -1;
    const char *host = end + 1, *colon = strrchr(host, ':'); /* an IPv6 address has others */
    if (!colon || colon[1] < '0' || colon[1] > '9') return -1;
    const unsigned long port = strtoul(colon + 1, &end, 10);
    const size_t n = (size_t)(colon - host);
    if (*end || port == 0 || port > 65535 || n >= sizeof to->host || memchr(host, ' ', n))
        return -1;
    *to = (struct kvc_redis_place_of){.slot = (unsigned)slot, .port = (uint16_t)port};
    if (!(n == 1 && *host == '?')) memcpy(to->host, host, n);
    return 0;
}

static const redisReply *element(const redisReply *r, size_t i, int type) {
    return r && r->type == REDIS_REPLY_ARRAY && i < r->elements && r->element[i] &&
                   r->element[i]->type == type
               ? r->element[i]
               : NULL;
}

int kvc_redis_ranges(const redisReply *slots, kvc_redis_range *range, void *state) {
    if (!slots || slots->type != REDIS_REPLY_ARRAY) return -1;
    for (size_t i = 0; i < slots->elements; i++) {
        const redisReply *item = element(slots, i, REDIS_REPLY_ARRAY),
                         *first = element(item, 0, REDIS_REPLY_INTEGER),
                         *last = element(item, 1, REDIS_REPLY_INTEGER),
                         *master = element(item, 2, REDIS_REPLY_ARRAY),
                         *host = element(master, 0, REDIS_REPLY_STRING),
                         *port = element(master, 1, REDIS_REPLY_INTEGER);
        if (!first || !last || !port || first->integer < 0 || first->integer > last->integer ||
            last->integer >= KVC_REDIS_SLOTS || port->integer < 1 || port->integer > 65535)
            return -1;
        /* a server that does not know its own address leaves it out */
        if (!host && !element(master, 0, REDIS_REPLY_NIL)) return -1;
        if (host && (host->len >= KVC_REDIS_HOST || strlen(host->str) != host->len)) return -1;
        const char *name = host && strcmp(host->str, "?") != 0 ? host->str : "";
        if (range(state, (unsigned)first->integer, (unsigned)last->integer, name,
                  (uint16_t)port->integer))
            return -1;
    }
    return 0;
}
