# packaging.mk: archives of the sources, and packages of Debian and RPM. Included by the top folder's Makefile.

DIST := kvc-$(VERSION)
DIST_TAR := build/$(DIST).tar.xz
# of the commit: archives and packages of one commit are equal
COMMIT_TIME = $(shell git log -1 --format=%ct)

## dist: build/kvc-VERSION.tar.xz of the last commit; the same commit gives the same bytes
.PHONY: dist
dist:
	@mkdir -p build
	@new=$$(mktemp build/dist.XXXXXX) && git archive --format=tar --prefix=$(DIST)/ HEAD >$$new && xz -T1 $$new && chmod 644 $$new.xz && mv $$new.xz $(DIST_TAR)
	@echo "$(DIST_TAR)"

## deb: Debian packages of the last commit, in build/deb (dpkg-dev and debhelper; lintian checks them if it is installed)
.PHONY: deb
deb: dist
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) sh packaging/make-deb.sh $(DIST_TAR) $(VERSION) build/deb

## rpm-spec: build/kvc.spec, for rpmbuild with build/kvc-VERSION.tar.xz
.PHONY: rpm-spec
rpm-spec: build/kvc.spec
build/kvc.spec: packaging/kvc.spec.in formats/api/kvc.h
	@mkdir -p build
	@sed 's/@VERSION@/$(VERSION)/' $< >$@

## rpm: RPM packages of the last commit, in build/rpm (rpmbuild)
.PHONY: rpm
rpm: dist build/kvc.spec
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) sh packaging/make-rpm.sh $(DIST_TAR) build/kvc.spec build/rpm

## check-dist: the archive of the sources is the same each time, has all files, and builds nothing that git does not have
.PHONY: check-dist
check-dist:
	@sh tests/check-dist.sh $(MAKE)

## check-reproducible: two builds in two folders, with debugging information, are the same bytes
.PHONY: check-reproducible
check-reproducible:
	@sh tests/check-reproducible.sh $(MAKE)
