/* redis_open.c: options of the tier. It connects to nobody: the first call does, by its own
 * deadline. */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 6379, TIMEOUT = 10 * 1000000, MAX_PASSWORD = 4096 };

/* Adds a host of the list "h1:7000,h2,[::1]:7002". */
static int add_host(struct kvc_redis *l, const char *text, size_t n, struct kvc_error *e) {
    char host[KVC_REDIS_HOST];
    const char *end = text + n, *colon;
    unsigned long port = PORT;
    if (n && *text == '[') {
        const char *close = memchr(text, ']', n);
        if (!close || (close + 1 < end && close[1] != ':'))
            return kvc_fail(e, KVC_ERR_USAGE, "redis: '%.*s' is no host: write [ADDRESS]:PORT",
                            (int)n, text);
        colon = close + 1 < end ? close + 1 : NULL;
        text++;
        n = (size_t)(close - text);
    } else {
        colon = memchr(text, ':', n);
        if (colon) n = (size_t)(colon - text);
    }
    if (colon) {
        char *stop;
        port = colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &stop, 10) : 0;
        if (port == 0 || port > 65535 || stop != end)
            return kvc_fail(e, KVC_ERR_USAGE, "redis: '%.*s' is no port", (int)(end - colon - 1),
                            colon + 1);
    }
    if (n == 0 || n >= sizeof host)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "redis: a host's name is missing or too long: write HOST:PORT,HOST:PORT");
    memcpy(host, text, n);
    host[n] = '\0';
    return kvc_redis_node_add(l, host, (uint16_t)port) < 0
               ? kvc_fail(e, KVC_ERR_USAGE, "redis: too many hosts")
               : 0;
}

static int add_hosts(struct kvc_redis *l, const char *text, struct kvc_error *e) {
    size_t n = strcspn(text, "/");
    if (text[n] && text[n + 1])
        return kvc_fail(e, KVC_ERR_USAGE,
                        "redis: nothing may follow the hosts but options: a database is ?db=N, a "
                        "prefix ?prefix=TEXT");
    for (const char *end = text + n;; text += n + 1) {
        n = strcspn(text, ",/");
        if (add_host(l, text, n, e)) return -1;
        if (text + n == end) return 0;
    }
}

/* Reads a password of one line from a file that others cannot read. */
static int read_password(const char *path, char password[MAX_PASSWORD], struct kvc_error *e) {
    struct stat s;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = 0;
    int status = 0;
    if (fd < 0)
        return kvc_fail(e, KVC_ERR_USAGE, "redis: password-file %s: %s", path, strerror(errno));
    if (fstat(fd, &s) || !S_ISREG(s.st_mode))
        status = kvc_fail(e, KVC_ERR_USAGE, "redis: password-file %s is no file", path);
    else if (s.st_mode & 077)
        status = kvc_fail(
            e, KVC_ERR_USAGE,
            "redis: others may read password-file %s: allow it to its owner alone (chmod 600)",
            path);
    else if ((n = read(fd, password, MAX_PASSWORD)) < 1 || n == MAX_PASSWORD)
        status = kvc_fail(e, KVC_ERR_USAGE, "redis: password-file %s is empty or too long", path);
    if (!status) {
        while (n > 0 && (password[n - 1] == '\n' || password[n - 1] == '\r')) n--;
        password[n] = '\0';
    }
    close(fd);
    return status;
}

static int add_setup(struct kvc_redis_options *o, int words, const char **word,
                     struct kvc_error *e) {
    char *text;
    const int n = redisFormatCommandArgv(&text, words, word, NULL);
    if (n < 0) return kvc_fail_memory(e, "a command");
    char *all = malloc(o->setup_size + (size_t)n);
    if (!all) {
        free(text);
        return kvc_fail_memory(e, "a command");
    }
    if (o->setup_size) memcpy(all, o->setup, o->setup_size);
    memcpy(all + o->setup_size, text, (size_t)n);
    explicit_bzero(text, (size_t)n);
    if (o->setup) explicit_bzero(o->setup, o->setup_size);
    free(text);
    free(o->setup);
    o->setup = all;
    o->setup_size += (size_t)n;
    o->setup_replies++;
    return 0;
}

static int log_in(struct kvc_redis_options *o, struct kvc_url *url, struct kvc_error *e) {
    char password[MAX_PASSWORD] = "";
    const char *user = kvc_url_text(url, "user", NULL),
               *file = kvc_url_text(url, "password-file", NULL),
               *given = getenv("KVC_REDIS_PASSWORD"), *db = kvc_url_text(url, "db", "0");
    char *end;
    const unsigned long number = strtoul(db, &end, 10);
    int status = 0;
    if (*db < '0' || *db > '9' || *end || number > INT32_MAX)
        return kvc_fail(e, KVC_ERR_USAGE, "redis: db: '%s' is no number", db);
    if (file) status = read_password(file, password, e);
    else if (given && strlen(given) < sizeof password) memcpy(password, given, strlen(given) + 1);
    if (!status && user && !*password)
        status = kvc_fail(
            e, KVC_ERR_USAGE,
            "redis: user '%s' has no password: set KVC_REDIS_PASSWORD or password-file", user);
    const char *auth[] = {"AUTH", user ? user : password, password}, *select[] = {"SELECT", db};
    if (!status && *password) status = add_setup(o, user ? 3 : 2, auth, e);
    if (!status && *password && !(o->password = strdup(password)))
        status = kvc_fail_memory(e, "a password");
    if (!status && number) status = add_setup(o, 2, select, e);
    explicit_bzero(password, sizeof password);
    return status;
}

static int read_options(struct kvc_redis *l, struct kvc_url *url, struct kvc_error *e) {
    struct kvc_redis_options *o = &l->o;
    const char *prefix = kvc_url_text(url, "prefix", "kvc:"), *ca = kvc_url_text(url, "ca", NULL),
               *certificate = kvc_url_text(url, "cert", NULL),
               *key = kvc_url_text(url, "key", NULL);
    o->timeout = TIMEOUT;
    o->max_object = UINT64_C(512) << 20;
    if (kvc_url_time(url, "ttl", &o->ttl, e) || kvc_url_time(url, "timeout", &o->timeout, e) ||
        kvc_url_bytes(url, "max-object", &o->max_object, e))
        return -1;
    if (o->ttl && o->ttl < 1000)
        return kvc_fail(e, KVC_ERR_USAGE, "redis: ttl must be at least 1ms");
    if (o->timeout < 1000 || o->timeout > INT64_C(3600) * 1000000)
        return kvc_fail(e, KVC_ERR_USAGE, "redis: timeout must be 1ms to 1h");
    if (strlen(prefix) >= KVC_REDIS_PREFIX || strpbrk(prefix, "{}"))
        return kvc_fail(e, KVC_ERR_USAGE, "redis: a prefix has up to %d bytes, without { and }",
                        KVC_REDIS_PREFIX - 1);
    if (!(o->prefix = strdup(prefix))) return kvc_fail_memory(e, "options");
    if (log_in(o, url, e) || kvc_url_rest(url, e)) return -1;
    const int tls = strcmp(url->scheme, "rediss") == 0;
    if (!tls && (ca || certificate || key))
        return kvc_fail(e, KVC_ERR_USAGE, "redis: ca, cert and key are options of rediss://");
    if (!certificate != !key)
        return kvc_fail(e, KVC_ERR_USAGE, "redis: cert and key are given together");
    if (tls && !(o->tls = kvc_redis_tls_open(ca, certificate, key, e))) return -1;
    return 0;
}

struct kvc_redis *kvc_redis_open(struct kvc_url *url, struct kvc_error *e) {
    struct kvc_redis *l = calloc(1, sizeof *l);
    if (!l || !(l->node = kvc_alloc(KVC_REDIS_MAX_NODES, sizeof(struct kvc_redis_node *)))) {
        free(l);
        kvc_fail_memory(e, "a tier");
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    kvc_condition_init(&l->looked);
    memset(l->slot, 0xff, sizeof l->slot);
    if (add_hosts(l, url->place, e) || read_options(l, url, e)) {
        kvc_redis_close(&l->tier);
        return NULL;
    }
    return l;
}

void kvc_redis_close(struct kvc_tier *tier) {
    struct kvc_redis *l = (struct kvc_redis *)tier;
    kvc_redis_nodes_free(l);
    kvc_redis_tls_close(l->o.tls);
    if (l->o.setup) explicit_bzero(l->o.setup, l->o.setup_size);
    if (l->o.password) explicit_bzero(l->o.password, strlen(l->o.password));
    free(l->o.password);
    free(l->o.setup);
    free(l->o.prefix);
    pthread_cond_destroy(&l->looked);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
