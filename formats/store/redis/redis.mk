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

$B/fuzz/fuzz_redis: $(REDIS_SRC:%.c=$B/fuzz/%.o) $B/fuzz/libkvc_store.a
$B/fuzz/fuzz_redis: override KVC_LDLIBS += $(redis_LIBS)

## test-redis: the Redis tier against real redis-servers on loopback: single, cluster, TLS; TESTS: some of the tests
.PHONY: test-redis
test-redis: $B/kvc_store_redis.so $B/tests/store/tier_driver $(TOOLS:%=$B/%)
	@"$(PYTHON)" tests/store/redis.py $B $(TESTS)
