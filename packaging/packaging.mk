# packaging.mk: archives of the sources, and packages of Debian and RPM. Included by the top folder's Makefile.

DIST := kvc-$(VERSION)
DIST_TAR := build/$(DIST).tar.xz
# of the commit: archives and packages of one commit are equal
COMMIT_TIME = $(shell git log -1 --format=%ct)

## dist: build/kvc-VERSION.tar.xz of the last commit; the same commit gives the same bytes
.PHONY: dist
dist:
	@git rev-parse -q --verify HEAD >/dev/null || { echo "make dist packs a commit: run it in a git checkout" >&2; exit 1; }
	@mkdir -p build
	@new=$$(mktemp build/dist.XXXXXX) && git archive --format=tar --prefix=$(DIST)/ HEAD >$$new && xz -T1 $$new && chmod 644 $$new.xz && mv $$new.xz $(DIST_TAR)
	@echo "$(DIST_TAR)"

## deb: Debian packages of the last commit, in build/deb (dpkg-dev and debhelper; lintian checks them if it is installed)
.PHONY: deb
deb:
	@sh packaging/make-deb.sh
	@$(MAKE) --no-print-directory dist
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) sh packaging/make-deb.sh $(DIST_TAR) $(VERSION) build/deb

## sbom: build/kvc-VERSION.cdx.json, the libraries that this build is linked with, or loads
.PHONY: sbom
sbom:
	@mkdir -p build
	@packaging/sbom.py $(VERSION) $(DEPS) libarchive sqlite3 $(if $(HAVE_redis),hiredis libssl) $(if $(HAVE_s3),libcurl expat) >build/$(DIST).cdx.json
	@echo build/$(DIST).cdx.json

## rpm-spec: build/kvc.spec, for rpmbuild with build/kvc-VERSION.tar.xz
.PHONY: rpm-spec
rpm-spec: build/kvc.spec
build/kvc.spec: packaging/kvc.spec.in formats/api/kvc.h
	@mkdir -p build
	@sed 's/@VERSION@/$(VERSION)/' $< >$@

## rpm: RPM packages of the last commit, in build/rpm (rpmbuild)
.PHONY: rpm
rpm:
	@sh packaging/make-rpm.sh
	@$(MAKE) --no-print-directory dist build/kvc.spec
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) sh packaging/make-rpm.sh $(DIST_TAR) build/kvc.spec build/rpm

# The Python package without libraries, for those of the packages libkvc-storeN (Debian) or kvc-libs. Users take pip: python/README.md.
PYTHONDIR ?= $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHON_FILES := $(patsubst python/%,%,$(wildcard python/kvc/py.typed python/kvc/*.py python/kvc/connectors/*.py))
PYTHON_INFO = $(DESTDIR)$(PYTHONDIR)/kvc-$(VERSION).dist-info

## install-python: for packages: the Python package in PYTHONDIR, and kvc-llama-proxy
.PHONY: install-python
install-python:
	for f in $(PYTHON_FILES); do $(INSTALL) -D -m 644 python/$$f $(DESTDIR)$(PYTHONDIR)/$$f || exit 1; done
	$(INSTALL) -d $(PYTHON_INFO) $(DESTDIR)$(BINDIR) $(DESTDIR)$(MANDIR)/man1
	printf '%s\n' 'Metadata-Version: 2.1' 'Name: kvc' 'Version: $(VERSION)' 'Requires-Dist: numpy' 'Requires-Dist: h11' >$(PYTHON_INFO)/METADATA
	printf '%s\n' '#!/usr/bin/python3' 'from kvc.connectors.llama_main import main' '' 'raise SystemExit(main())' >$(DESTDIR)$(BINDIR)/kvc-llama-proxy
	chmod 755 $(DESTDIR)$(BINDIR)/kvc-llama-proxy
	$(INSTALL) -m 644 man/kvc-llama-proxy.1 $(DESTDIR)$(MANDIR)/man1

## check-dist: the archive of the sources is the same each time, has all files, and builds nothing that git does not have
.PHONY: check-dist
check-dist:
	@sh tests/check-dist.sh $(MAKE)

## check-reproducible: two builds in two folders, with debugging information, are the same bytes
.PHONY: check-reproducible
check-reproducible:
	@sh tests/check-reproducible.sh $(MAKE)
