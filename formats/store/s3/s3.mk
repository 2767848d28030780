# s3.mk: tests of the S3 tier, and whether it can be built. Included by store.mk.

HAVE_s3 := $(shell $(PKG_CONFIG) --exists "libcurl >= 7.88" expat 2>/dev/null && echo 1)
s3_LIBS = $(shell $(PKG_CONFIG) --libs libcurl expat)
S3_SRC := $(sort $(wildcard formats/store/s3/*.c))
S3_OBJ := $(S3_SRC:%.c=$B/%.o)
# without its libraries, its tests are left out too
NOT_BUILT += $(if $(HAVE_s3),,tests/unit/test_store_s3.c tests/fuzz/fuzz_store_s3.c)

# A resolver of libcurl that hangs may outlast the tier: its code must stay.
$B/kvc_store_s3.so: private LDFLAGS += -Wl,-z,nodelete

# its own tests: it is linked into them, so that they see its counters
$B/tests/unit/test_store_s3 $B/tests/store/s3_driver: %: %.o $(S3_OBJ) $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(if $(findstring unit,$@),-lcmocka) $(s3_LIBS) $(LIBS)
$B/replay/fuzz_store_s3: $B/tests/fuzz/fuzz_store_s3.o $B/tests/fuzz/replay.o $(S3_OBJ) $B/libkvc_store.a $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)
$B/fuzz/fuzz_store_s3: $(S3_SRC:%.c=$B/fuzz/%.o) $B/fuzz/libkvc_store.a
$B/replay/fuzz_store_s3 $B/fuzz/fuzz_store_s3: override KVC_LDLIBS += $(s3_LIBS)

## test-s3-sign: the signatures that libcurl makes for the S3 backend, computed again
.PHONY: test-s3-sign
test-s3-sign: $B/tests/store/s3_driver
	@PYTHONDONTWRITEBYTECODE=1 "$(PYTHON)" tests/store/s3_sign.py $<

## test-s3: the S3 backend with real servers, from PyPI, and with a proxy that makes faults
.PHONY: test-s3
test-s3: $B/tests/store/s3_driver
	@"$(PYTHON)" tests/store/s3.py $<
