# SPDX-License-Identifier: Apache-2.0
#
#   make run                       bring the suite up in the foreground
#   make run ASK="a question"      ask, see the answer, and leave nothing running
#   make test                      linters, unit, integration and system tests (ARGS=… goes to pytest)
#   make incidents DIR=FOLDER      break services of a test machine, and see what is done (root; default: ours)
#   make vm                        limits of control groups, in an emulated machine (root, QEMU, minutes)
#   make bench                     measure, and print one table
#   make install                   install on this host (root, systemd)
#   make clean                     remove what was built here; models and caches stay
#
# PYTHON chooses the interpreter (3.11 to 3.13), MODEL the model that is asked.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
MODEL ?= smollm2:135m
PORT ?= 32768
VENV := .venv
CTL := $(VENV)/bin/syntropctl
BUILT := $(VENV)/.built
TESTABLE := $(VENV)/.testable
SOURCES := pyproject.toml setup.py \
	$(wildcard src/syntrop/interfaces/*.varlink src/syntrop/runtimed/kernels/*.[ch]) \
	$(wildcard src/syntrop/runtimed/kernels/*.py src/syntrop/runtimed/kernels/*.cdef) \
	$(wildcard src/syntrop/toold/sandbox/*.c src/syntrop/toold/sandbox/*.cdef src/syntrop/toold/sandbox/build.py)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input

# Taken literally: a question may hold dollar signs and quotes.
override export ASK := $(value ASK)
export MODEL PORT

DIR ?=
.PHONY: run test incidents vm bench install clean help
help:
	@sed -n '3,12s/^# *//p' Makefile

# Debian and its kin: each line is a question and the package that answers it. Elsewhere we only tell.
define PACKAGES
need() { missing="$$missing $$1"; }
missing=
command -v cc >/dev/null || need gcc
printf '#include <stdlib.h>\n' | { cc -E - >/dev/null 2>&1 || need libc6-dev; }
$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null || need python3-dev
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
command -v pkg-config >/dev/null || need pkg-config
{ command -v pkg-config >/dev/null && pkg-config --exists libsystemd; } || need libsystemd-dev
endef
export PACKAGES

define TEST_PACKAGES
need() { missing="$$missing $$1"; }
missing=
command -v curl >/dev/null || need curl
command -v bwrap >/dev/null || need bubblewrap
command -v dbus-daemon >/dev/null || need dbus-daemon
command -v groff >/dev/null || need groff-base
command -v h2load >/dev/null || need nghttp2-client
command -v wrk >/dev/null || need wrk
command -v node >/dev/null || need nodejs
command -v npm >/dev/null || need npm
command -v unshare >/dev/null || need util-linux
[ "$$(id -u)" != 0 ] || command -v mmdebstrap >/dev/null || need mmdebstrap
[ "$$(id -u)" != 0 ] || command -v mkfs.btrfs >/dev/null || need btrfs-progs
endef
export TEST_PACKAGES

# Installs what is in $missing, where that may be done; says what to do where not.
define INSTALL_MISSING
[ -n "$$missing" ] || exit 0
as=
[ "$$(id -u)" = 0 ] || as="sudo -n"
command -v apt-get >/dev/null || { echo "make: please install what Debian calls$$missing" >&2; exit 1; }
if [ -n "$$as" ] && ! $$as true 2>/dev/null; then
    echo "make: this needs packages that only root may install: apt-get install$$missing" >&2; exit 1
fi
echo "installing$$missing"
$$as apt-get update -qq || echo "make: the package lists could not be refreshed; trying with the present ones" >&2
$$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null
endef
export INSTALL_MISSING

$(VENV)/bin/python:
	@eval "$$PACKAGES"; eval "$$INSTALL_MISSING"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "make: syntrop needs Python 3.11 to 3.13; set PYTHON=" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The build's own needs go into the same environment: what is there is not fetched again, so that a rebuild needs
# no network.
$(BUILT): $(SOURCES) | $(VENV)/bin/python
	@eval "$$PACKAGES"; eval "$$INSTALL_MISSING"
	@echo "building (compiles the kernels; about a minute the first time)"
	@$(VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		> $(VENV)/.build-requires
	@$(PIP) install -q -r $(VENV)/.build-requires
	@$(PIP) install -q --no-build-isolation -e .
	@touch $@

$(TESTABLE): $(BUILT)
	@eval "$$TEST_PACKAGES"; eval "$$INSTALL_MISSING"
	@$(PIP) install -q --no-build-isolation -e '.[test]'
	@touch $@

# A suite that is already up is used: systemd's where it is installed, or an activator in another terminal. Else
# one comes up here; the model is put into the store first, if it is not in it.
define RUN
if [ -d /run/systemd/system ] && [ -e /usr/lib/systemd/system/syntrop-sockets.target ]; then
    systemctl is-active -q syntrop-sockets.target || systemctl start syntrop-sockets.target
fi
store='$(CTL) models fetch-starter --import'
if $(CTL) status >/dev/null 2>&1; then
    $$store
    if [ -n "$$ASK" ]; then exec $(CTL) ask -m "$$MODEL" -- "$$ASK"; fi
    echo "syntrop is ready: syntropctl status tells who is awake"
    echo "try: $$($(CTL) info --curl)"
elif [ -n "$$ASK" ]; then
    exec $(CTL) up --quiet --port 0 --idle 1 -- \
        sh -euc "$$store; exec $(CTL) ask -m \"\$$MODEL\" -- \"\$$ASK\""
else
    $(CTL) up --quiet --port 0 --idle 0.2 -- $$store
    exec $(CTL) up --port "$$PORT"
fi
endef
export RUN

run: $(BUILT)
	@eval "$$RUN"

test: $(TESTABLE)
	$(VENV)/bin/python -m pytest $(ARGS)

incidents: $(TESTABLE)
	$(VENV)/bin/python tests/system/playing.py $(DIR)

vm: $(TESTABLE)
	$(VENV)/bin/python tests/vm/limits.py

bench: $(TESTABLE)
	$(VENV)/bin/python tests/bench/run.py $(ARGS)

install:
	units/install.sh install

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf src/*.egg-info src/syntrop/interfaces/*.idl.json src/syntrop/runtimed/_kernels* src/syntrop/toold/_confine*
	find src tests -name __pycache__ -prune -exec rm -rf {} +
