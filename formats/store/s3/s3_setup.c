/* s3_setup.c: reads options and credentials. Spec: S3.md, "Options" and "Credentials". */
#include "formats/store/s3/s3_state.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)
#define SECOND INT64_C(1000000)

/* Copies a text; -1: it does not fit. */
static int copy(char *to, size_t room, const char *from) {
    const size_t n = strlen(from);
    if (n >= room) return -1;
    memcpy(to, from, n + 1);
    return 0;
}

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* --- credentials --- */

static int take_key(struct kvc_s3_key *k, const char *id, const char *secret, const char *token,
                    struct kvc_error *e) {
    if (copy(k->id, sizeof k->id, id) || copy(k->secret, sizeof k->secret, secret) ||
        copy(k->token, sizeof k->token, token))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "s3: a key, a secret or a session token is longer than those of S3");
    for (const char *p = id; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '/' || *p == ',')
            return kvc_fail(e, KVC_ERR_USAGE, "s3: the access key id has characters that none has");
    for (const char *p = token; *p; p++)
        if (*p <= ' ' || *p > '~')
            return kvc_fail(e, KVC_ERR_USAGE, "s3: the session token has characters that none has");
    return 0;
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *text) {
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    text[n] = '\0';
    return text;
}

static void read_profile(struct kvc_s3_key *k, FILE *f, const char *profile, int *long_value) {
    char line[4608];
    int within = 0;
    while (fgets(line, sizeof line, f)) {
        char *text = trim(line), *value = strchr(text, '=');
        if (*text == '[') {
            char *end = strchr(text, ']');
            if (end) *end = '\0';
            within = strcmp(trim(text + 1), profile) == 0;
            continue;
        }
        if (!within || *text == '#' || *text == ';' || !value) continue;
        *value++ = '\0';
        text = trim(text);
        value = trim(value);
        if (strcmp(text, "aws_access_key_id") == 0) *long_value |= copy(k->id, sizeof k->id, value);
        else if (strcmp(text, "aws_secret_access_key") == 0)
            *long_value |= copy(k->secret, sizeof k->secret, value);
        else if (strcmp(text, "aws_session_token") == 0)
            *long_value |= copy(k->token, sizeof k->token, value);
    }
    OPENSSL_cleanse(line, sizeof line);
}

/* Reads a profile of a file of credentials. 1: there is no such file; -1: it is unfit. */
static int read_key_file(struct kvc_s3_key *k, const char *path, const char *profile,
                         struct kvc_error *e) {
    struct stat st;
    struct kvc_s3_key read = {0};
    int long_value = 0;
    FILE *f = fopen(path, "re");
    if (!f && errno == ENOENT) return 1;
    if (!f || fstat(fileno(f), &st)) {
        if (f) fclose(f);
        return kvc_fail(e, KVC_ERR_IO, "s3: the file of credentials '%s' cannot be read: %s", path,
                        strerror(errno));
    }
    if (st.st_mode & 077) {
        fclose(f);
        return kvc_fail(e, KVC_ERR_USAGE,
                        "s3: the file of credentials '%s' is readable by others: chmod 600 it",
                        path);
    }
    read_profile(&read, f, profile, &long_value);
    fclose(f);
    int status = 0;
    if (long_value || !*read.id || !*read.secret)
        status = kvc_fail(
            e, KVC_ERR_USAGE,
            "s3: '%s' has no profile [%s] with aws_access_key_id and aws_secret_access_key", path,
            profile);
    else status = take_key(k, read.id, read.secret, read.token, e);
    OPENSSL_cleanse(&read, sizeof read);
    return status;
}

/* A file or profile named in the URL comes first, then the environment, then the user's file. */
static int find_key(struct kvc_s3_key *k, struct kvc_url *u, struct kvc_error *e) {
    const char *file = kvc_url_text(u, "credentials-file", NULL),
               *profile = kvc_url_text(u, "profile", NULL);
    const char *id = environment("AWS_ACCESS_KEY_ID"),
               *secret = environment("AWS_SECRET_ACCESS_KEY");
    const char *token = environment("AWS_SESSION_TOKEN"), *home = environment("HOME");
    int anonymous = 0;
    if (kvc_url_flag(u, "anonymous", &anonymous, e)) return -1;
    if (anonymous) return 0;
    if (!file && !profile && id && secret) return take_key(k, id, secret, token ? token : "", e);
    char path[4096];
    const int named = file || profile;
    if (!file) file = environment("AWS_SHARED_CREDENTIALS_FILE");
    if (!file) {
        const int n = snprintf(path, sizeof path, "%s/.aws/credentials", home ? home : "");
        if (n < 0 || (size_t)n >= sizeof path)
            return kvc_fail(e, KVC_ERR_USAGE, "s3: HOME is too long");
        file = path;
    }
    if (!profile) profile = environment("AWS_PROFILE");
    const int status = read_key_file(k, file, profile ? profile : "default", e);
    if (status == 1 && named)
        return kvc_fail(e, KVC_ERR_IO, "s3: there is no file of credentials '%s'", file);
    return status == 1 ? 0 : status;
}

/* --- bucket and endpoint --- */

#define ALPHANUMERIC "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

static int only(const char *text, const char *characters) {
    return !text[strspn(text, characters)];
}

/* Returns 1 if a part of a path is "." or "..". */
static int has_dots(const char *path) {
    for (size_t n; *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        if (n && n <= 2 && strspn(path, ".") >= n) return 1;
    }
    return 0;
}

static int read_place(struct kvc_s3_setup *s, const char *place, struct kvc_error *e) {
    const size_t n = strcspn(place, "/");
    const char *prefix = place + n + (place[n] == '/');
    if (!n || n >= sizeof s->bucket)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: '%s' names no bucket: write s3://BUCKET/PREFIX",
                        place);
    memcpy(s->bucket, place, n);
    s->bucket[n] = '\0';
    if (!only(s->bucket, ALPHANUMERIC ".-_") || s->bucket[0] == '.')
        return kvc_fail(e, KVC_ERR_USAGE, "s3: '%s' is no name of a bucket", s->bucket);
    const size_t length = strlen(prefix);
    const int ends = length && prefix[length - 1] != '/';
    const int m = snprintf(s->prefix, sizeof s->prefix, "%s%s", prefix, ends ? "/" : "");
    if (m < 0 || (size_t)m >= sizeof s->prefix)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: the prefix is longer than 500 bytes");
    for (const char *p = prefix; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return kvc_fail(e, KVC_ERR_USAGE, "s3: the prefix has control characters");
    if (has_dots(prefix))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "s3: the prefix has a part '.' or '..', which URLs leave out");
    return 0;
}

/* Writes base and path for "SCHEME://HOST:PORT/PATH" and the style of addresses. */
static int read_endpoint(struct kvc_s3_setup *s, const char *endpoint, int virtual_host,
                         struct kvc_error *e) {
    char host[256], path[200];
    const char *rest = endpoint;
    s->tls = 1;
    if (strncasecmp(endpoint, "http://", 7) == 0) {
        s->tls = 0;
        rest += 7;
    } else if (strncasecmp(endpoint, "https://", 8) == 0) {
        rest += 8;
    } else if (strstr(endpoint, "://")) {
        return kvc_fail(e, KVC_ERR_USAGE, "s3: the endpoint '%s' is neither https:// nor http://",
                        endpoint);
    }
    size_t n = strcspn(rest, "/"), m = strlen(rest + n);
    while (m && rest[n + m - 1] == '/') m--;
    if (!n || n >= sizeof host || m >= sizeof path)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: '%s' is no endpoint, as http://HOST:9000", endpoint);
    memcpy(path, rest + n, m);
    path[m] = '\0';
    /* messages name the endpoint as libcurl's header does: without the port of the scheme */
    const char *usual = s->tls ? ":443" : ":80";
    const size_t port = strlen(usual);
    if (n > port && strncmp(rest + n - port, usual, port) == 0) n -= port;
    memcpy(host, rest, n);
    host[n] = '\0';
    /* not repeated: it may hold a password */
    if (!only(host, ALPHANUMERIC ".-_:[]") || !only(path, ALPHANUMERIC "/-._~") || has_dots(path))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "s3: the endpoint has characters that no host and path have");
    const char *scheme = s->tls ? "https://" : "http://";
    const int a = snprintf(s->base, sizeof s->base, "%s%s%s%s", scheme,
                           virtual_host ? s->bucket : "", virtual_host ? "." : "", host);
    const int b = snprintf(s->path, sizeof s->path, "%s%s%s", path, virtual_host ? "" : "/",
                           virtual_host ? "" : s->bucket);
    if (a < 0 || (size_t)a >= sizeof s->base || b < 0 || (size_t)b >= sizeof s->path)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: the endpoint is too long");
    return 0;
}

static int find_endpoint(struct kvc_s3_setup *s, struct kvc_url *u, struct kvc_error *e) {
    const char *region = kvc_url_text(u, "region", NULL),
               *endpoint = kvc_url_text(u, "endpoint", NULL);
    const char *style = kvc_url_text(u, "style", NULL);
    char amazon[128];
    if (!region) region = environment("AWS_REGION");
    if (!region) region = environment("AWS_DEFAULT_REGION");
    if (!region) region = "us-east-1";
    if (!*region || !only(region, ALPHANUMERIC "-_") || copy(s->region, sizeof s->region, region))
        return kvc_fail(e, KVC_ERR_USAGE, "s3: '%s' is no name of a region", region);
    if (!endpoint) endpoint = environment("AWS_ENDPOINT_URL_S3");
    if (!endpoint) endpoint = environment("AWS_ENDPOINT_URL");
    /* a certificate for *.s3... does not cover names with a dot */
    int virtual_host = !endpoint && !strchr(s->bucket, '.');
    if (style && strcmp(style, "path") != 0 && strcmp(style, "host") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: style: '%s' is neither path nor host", style);
    if (style) virtual_host = style[0] == 'h';
    if (!endpoint) {
        snprintf(amazon, sizeof amazon, "https://s3.%s.amazonaws.com", s->region);
        endpoint = amazon;
    }
    return read_endpoint(s, endpoint, virtual_host, e);
}

/* --- the rest --- */

static int s3_setup_count(struct kvc_url *u, const char *key, uint64_t low, uint64_t high,
                          uint64_t *value, struct kvc_error *e) {
    if (kvc_url_bytes(u, key, value, e)) return -1;
    if (*value < low || *value > high)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "s3: %s is from %" PRIu64 " to %" PRIu64 ", and not %" PRIu64, key, low,
                        high, *value);
    return 0;
}

static int read_options(struct kvc_s3_setup *s, struct kvc_url *u, struct kvc_error *e) {
    uint64_t connections = 32, tries = 8;
    s->max_object = 1024 * MIB;
    s->part = 16 * MIB;
    s->range = 8 * MIB;
    s->window = 128 * MIB;
    s->remember = 60 * SECOND;
    s->stall = 10 * SECOND;
    s->connect = 3 * SECOND;
    s->delete_bad = s->hedge = 1;
    s->sign_payload = !s->tls;
    const char *ca = kvc_url_text(u, "ca-file", NULL),
               *condition = kvc_url_text(u, "condition", "header");
    if (strcmp(condition, "header") != 0 && strcmp(condition, "head") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: condition: '%s' is neither header nor head",
                        condition);
    s->head_first = strcmp(condition, "head") == 0;
    if (ca && (s->ca_file = strdup(ca)) == NULL) return kvc_fail_memory(e, "options of S3");
    if (s3_setup_count(u, "max-object", 1, 5120 * 1024 * MIB, &s->max_object, e) ||
        s3_setup_count(u, "part", 5 * MIB, 5120 * MIB, &s->part, e) ||
        s3_setup_count(u, "range", 65536, 1024 * MIB, &s->range, e) ||
        s3_setup_count(u, "window", MIB, UINT64_C(1) << 50, &s->window, e) ||
        s3_setup_count(u, "connections", 1, 256, &connections, e) ||
        s3_setup_count(u, "tries", 1, 100, &tries, e))
        return -1;
    s->connections = (unsigned)connections;
    s->tries = (unsigned)tries;
    if (kvc_url_time(u, "remember", &s->remember, e) || kvc_url_time(u, "stall", &s->stall, e) ||
        kvc_url_time(u, "connect", &s->connect, e) ||
        kvc_url_flag(u, "delete", &s->delete_bad, e) || kvc_url_flag(u, "hedge", &s->hedge, e) ||
        kvc_url_flag(u, "sign-payload", &s->sign_payload, e))
        return -1;
    if (s->stall < SECOND / 100 || s->connect < SECOND / 100)
        return kvc_fail(e, KVC_ERR_USAGE, "s3: stall and connect are at least 10ms");
    return kvc_url_rest(u, e);
}

int kvc_s3_setup(struct kvc_s3_setup *s, struct kvc_url *u, struct kvc_error *e) {
    *s = (struct kvc_s3_setup){0};
    if (read_place(s, u->place, e) || find_endpoint(s, u, e) || find_key(&s->key, u, e) ||
        read_options(s, u, e)) {
        kvc_s3_setup_free(s);
        return -1;
    }
    return 0;
}

void kvc_s3_setup_free(struct kvc_s3_setup *s) {
    free(s->ca_file);
    OPENSSL_cleanse(s, sizeof *s);
}
