# store.mk: libkvc_store, the tool kvc-store, and the backends that are loaded on demand. Included by the top folder's Makefile.

STORE_SRC := $(sort $(wildcard formats/store/*.c formats/store/dir/*.c))
STORE_OBJ := $(STORE_SRC:%.c=$B/%.o)
STORE_LIBS := $(shell $(PKG_CONFIG) --libs lmdb 2>/dev/null)

$B/libkvc_store.a: $(STORE_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# A backend: kvc_store_NAME.so of formats/store/NAME/. What it uses of libkvc is inside and not to be seen from outside.
BACKENDS := redis s3
redis_LIBS = $(shell $(PKG_CONFIG) --libs hiredis)
s3_LIBS = $(shell $(PKG_CONFIG) --libs libcurl expat)
$B/kvc_store_%.so: $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) -shared -Wl,-z,defs -Wl,--exclude-libs,ALL $(filter-out %.a,$^) $B/libkvc_store.a $B/libkvc.a $($*_LIBS) $(LIBS)
$(foreach b,$(BACKENDS),$(eval $B/kvc_store_$b.so: $(patsubst %.c,$B/%.o,$(wildcard formats/store/$b/*.c))))

-include $(STORE_OBJ:.o=.d) $(patsubst %.c,$B/%.d,$(wildcard formats/store/redis/*.c formats/store/s3/*.c))

# The S3 backend's own tests: it is linked into them, so that they see its counters.
S3_OBJ := $(patsubst %.c,$B/%.o,$(wildcard formats/store/s3/*.c))
$B/tests/unit/test_store_s3: $B/tests/unit/test_store_s3.o $(S3_OBJ) $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ -lcmocka $(s3_LIBS) $(LIBS)
$B/tests/store/s3_driver: $B/tests/store/s3_driver.o $(S3_OBJ) $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(s3_LIBS) $(LIBS)
