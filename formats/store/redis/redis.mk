# redis.mk: tests of the Redis tier, and whether it can be built. Included by store.mk.

HAVE_redis := $(shell $(PKG_CONFIG) --exists hiredis libssl 2>/dev/null && echo 1)
redis_LIBS = $(shell $(PKG_CONFIG) --libs hiredis libssl)
REDIS_SRC := $(sort $(wildcard formats/store/redis/*.c))
REDIS_OBJ := $(REDIS_SRC:%.c=$B/%.o)
# without its libraries, its tests are left out too
NOT_BUILT += $(if $(HAVE_redis),,tests/unit/test_store_redis.c tests/fuzz/fuzz_redis.c)

$B/tests/unit/test_store_redis: $B/tests/unit/test_store_redis.o $(REDIS_OBJ) $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ -lcmocka $(redis_LIBS) $(LIBS)

$B/replay/fuzz_redis: $B/tests/fuzz/fuzz_redis.o $B/tests/fuzz/replay.o $(REDIS_OBJ) $B/libkvc_store.a $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(redis_LIBS) $(LIBS)

$B/fuzz/fuzz_redis: tests/fuzz/fuzz_redis.c $(REDIS_SRC) formats/store/tier.c formats/store/object.c formats/store/url.c codecs/error.c codecs/near.c formats/io/hash.c | $B/ready
	@mkdir -p $(@D)
	$(SAY) FUZZ $@
	$(Q)$(FUZZ_CC) $(KVC_CPPFLAGS) -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $@ $^ \
	  $(redis_LIBS) $(KVC_LDLIBS)

## test-redis: the Redis tier against real redis-servers on loopback: single, cluster, TLS; TESTS: some of the tests
.PHONY: test-redis
test-redis: $B/kvc_store_redis.so $B/tests/store/tier_driver $(TOOLS:%=$B/%)
	@"$(PYTHON)" tests/store/redis.py $B $(TESTS)
