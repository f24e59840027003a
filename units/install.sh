#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs, upgrades or removes the suite under /usr/lib/syntrop, on a host or into an image.
#
#   install.sh install     build and put everything in place; on a running systemd also switch it on (root)
#   install.sh activate    accounts, folders and enablement only: what a package's postinst would do
#   install.sh uninstall   remove what install put in place; state and accounts stay
#
# DESTDIR=DIR   install below DIR and switch nothing on (images, packages)
# PYTHON=…      the distribution's interpreter, /usr/bin/python3 by default
# EXTRAS=mcp    also what `systemd-sentry mcp` needs
# BUILD_ENV=DIR keep pip and the build tools there between calls, instead of in a temporary folder
# pip is steered by its own configuration and PIP_… variables.
set -eu

prefix=/usr/lib/syntrop
destdir=${DESTDIR:-}
python=${PYTHON:-/usr/bin/python3}
source=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
units=$source/units
daemons="routerd inferenced modeld contextd toold runtimed systemd-sentry"
sockets="routerd.socket inferenced.socket inferenced-enclave.socket inferenced-lookout.socket modeld.socket
modeld-pull.socket contextd.socket toold.socket toold-diag.socket runtimed.socket systemd-sentry.socket"

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
live() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }

# "SOURCE TARGET" of every plain file, one a line.
files() {
    for f in "$units"/*.service "$units"/*.socket "$units"/*.slice "$units"/*.target; do
        say "$f /usr/lib/systemd/system/${f##*/}"
    done
    for f in "$units"/*.service; do
        say "$units/untriaged.conf /usr/lib/systemd/system/${f##*/}.d/50-syntrop-triage.conf"
    done
    for folder in sysusers.d tmpfiles.d sysctl.d; do
        for f in "$units/$folder"/*.conf; do say "$f /usr/lib/$folder/${f##*/}"; done
    done
    for f in "$units"/system-preset/*.preset; do say "$f /usr/lib/systemd/system-preset/${f##*/}"; done
    for f in "$units"/polkit/actions/*.policy; do say "$f /usr/share/polkit-1/actions/${f##*/}"; done
    for f in "$units"/polkit/rules.d/*.rules; do say "$f /usr/share/polkit-1/rules.d/${f##*/}"; done
    for f in "$units"/catalog/*.catalog; do say "$f /usr/lib/systemd/catalog/${f##*/}"; done
    for f in "$units"/dbus-1/system.d/*.conf; do say "$f /usr/share/dbus-1/system.d/${f##*/}"; done
}

# Man pages and completions, which lie in the prefix and are linked to where others look for them.
shared() { (cd "$1/share" && find . -type f | sed 's|^\./||'); }

# Debian: what building and running need and the host lacks. Elsewhere the build's own errors must do.
install_packages() {
    [ -z "$destdir" ] && command -v apt-get >/dev/null || return 0
    missing=
    for package in gcc libc6-dev python3-dev python3-venv pkg-config libsystemd-dev libnss-systemd; do
        # dpkg-query says "unknown package" on stderr: that is the question, not an error.
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing$missing"
    apt-get update -qq || say "could not refresh the package lists; trying with the present ones"
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

# Two lines instead of pip's script: that one imports re and sys machinery before the daemon's first line.
# -I ignores the caller's environment and folder, -S leaves out site (2 ms); the suite's modules come last in the
# path, where nothing of theirs can stand in for a standard one.
launcher() { # LAUNCHER MODULE SITE-PACKAGES
    cat >"$1" <<END
#!$prefix/bin/python3 -IS
import sys; sys.path.append("$3")
from syntrop.$2 import main; main()
END
    chmod 755 "$1"
}

build() { # STAGE: fill a folder with the whole prefix
    stage=$1
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
        die "$python is $("$python" -V 2>&1); the suite needs Python 3.11 to 3.13"
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')

    tools=${BUILD_ENV:-$work/tools}
    if [ ! -x "$tools/bin/pip" ]; then
        "$python" -m venv "$tools"
        "$tools/bin/python" - "$source/pyproject.toml" >"$tools/requires.txt" <<'END'
import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["build-system"]["requires"], sep="\n")
END
        "$tools/bin/pip" install -q -r "$tools/requires.txt"
    fi

    # A copy, so that nothing built lands, owned by root, in the user's clone. A kept one still holds the compiled
    # kernels, and serves for as long as none of their files has changed.
    kernels=$(cd "$source" && find setup.py pyproject.toml src/syntrop/runtimed/kernels src/syntrop/toold/sandbox \
        -name '*.pyc' -o -type f \
        -exec sha256sum {} + | sort | sha256sum | cut -c1-16)
    copy=$tools/source-$kernels
    for old in "$tools"/source-*; do
        if [ "$old" != "$copy" ]; then rm -rf "$old"; fi
    done
    mkdir -p "$copy" "$work/wheels"
    find "$copy" -type f ! -path "$copy/build/temp*" ! -path "$copy/build/lib*.so" -delete
    tar -c -C "$source" -f "$work/source.tar" --exclude='__pycache__' --exclude='*.so' --exclude='*.egg-info' \
        pyproject.toml setup.py README.md LICENSE src
    tar -x -C "$copy" -f "$work/source.tar" --no-same-owner
    "$tools/bin/pip" wheel -q --no-deps --no-build-isolation -w "$work/wheels" "$copy"

    # An upgrade starts from what is there: pip then fetches only what the new version asks for.
    if [ -d "$destdir$prefix/lib/$version" ]; then
        cp -a "$destdir$prefix" "$stage"
    else
        "$python" -m venv --without-pip "$stage"
    fi
    set -- "$work"/wheels/*.whl
    "$tools/bin/pip" --python "$stage/bin/python3" install -q --no-compile "$1${EXTRAS:+[$EXTRAS]}"
    "$tools/bin/pip" --python "$stage/bin/python3" install -q --no-compile --no-deps --force-reinstall \
        "$work"/wheels/*.whl

    # pip's own scripts name the staging folder; ours replace them.
    find "$stage/bin" -mindepth 1 ! -name 'python*' -delete
    rm -f "$stage/bin/Activate.ps1"
    site=lib/$version/site-packages
    for daemon in $daemons; do
        launcher "$stage/bin/$daemon" "${daemon#systemd-}.__main__" "$prefix/$site"
    done
    launcher "$stage/bin/inferenced-aftermath" inferenced.aftermath "$prefix/$site"
    launcher "$stage/bin/inferenced-lookout" inferenced.lookout "$prefix/$site"
    launcher "$stage/bin/modeld-pull" modeld.pull.__main__ "$prefix/$site"
    launcher "$stage/bin/syntropctl" ctl.__main__ "$prefix/$site"
    # What OnFailure= starts, hundreds at once in a storm: no interpreter.
    "${CC:-cc}" -std=gnu11 -O2 -o "$stage/bin/syntrop-triage" "$source/src/syntrop/sentry/triage/syntrop-triage.c"
    "$python" -m compileall -q -j0 -x '/tests?/' -s "$stage" -p "$prefix" "$stage/$site"
    mkdir -p "$stage/units"
    rm -rf "$stage/units/optional"
    cp -R "$units/optional" "$stage/units/optional"
    rm -rf "$stage/share"
    "$python" -B "$source/docs/generate.py" "$stage/share" # man pages and completions; -B: no cache in the clone
    chmod -R u=rwX,go=rX "$stage"
}

# Services first: a socket unit cannot start, and would be left without an owner, while its service runs.
stop_all() {
    live || return 0
    services=
    for daemon in $daemons; do services="$services $daemon.service"; done
    systemctl stop 'modeld-pull@*.service' 'inferenced-lookout@*.service' # patterns: none is no error
    for unit in $services $sockets syntrop-sockets.target; do
        # Not is-active: a crashed daemon that waits for its restart has to go too.
        case $(systemctl show --value -p ActiveState "$unit") in
        inactive | failed) ;;
        *) systemctl stop "$unit" ;;
        esac
    done
}

# A file of ours; with the last drop-in of a unit goes its folder.
drop() {
    rm -f "$destdir$1"
    case $1 in
    *.service.d/*) if [ -d "$destdir${1%/*}" ]; then rmdir --ignore-fail-on-non-empty "$destdir${1%/*}"; fi ;;
    esac
}

# An upgrade takes away what the earlier version had placed and this one does not.
remove_stale() { # STAGE
    files | while read -r _ to; do say "$to"; done | LC_ALL=C sort >"$1/installed-files"
    [ -f "$destdir$prefix/installed-files" ] || return 0
    LC_ALL=C comm -23 "$destdir$prefix/installed-files" "$1/installed-files" |
        while read -r stale; do drop "$stale"; done
}

place() {
    remove_stale "$1"
    files | while read -r from to; do install -D -m 644 "$from" "$destdir$to"; done
    install -d -m 755 "$destdir/usr/bin" "$destdir/usr/lib"
    rm -rf "$destdir$prefix.old"
    if [ -d "$destdir$prefix" ]; then mv "$destdir$prefix" "$destdir$prefix.old"; fi
    mv "$1" "$destdir$prefix"
    rm -rf "$destdir$prefix.old"
    ln -sfn "$prefix/bin/syntropctl" "$destdir/usr/bin/syntropctl"
    shared "$destdir$prefix" | while read -r file; do
        install -d -m 755 "$destdir/usr/share/${file%/*}"
        ln -sfn "$prefix/share/$file" "$destdir/usr/share/$file"
    done
}

activate() {
    [ -z "$destdir" ] || return 0
    systemd-sysusers syntrop.conf
    journalctl --update-catalog
    if live; then
        systemd-tmpfiles --create syntrop.conf
        systemctl daemon-reload
        if systemctl -q is-active dbus.service; then systemctl reload dbus.service; fi
        systemctl enable --now -q syntrop-sockets.target
        systemctl restart syntrop-ports.service
        say "installed; the sockets listen. Try: syntropctl status"
    else
        systemctl enable -q syntrop-sockets.target
        say "installed; the sockets start with the next boot"
    fi
}

uninstall() {
    if live; then systemctl disable -q syntrop-sockets.target || say "the target was not enabled"; fi
    stop_all
    if live; then systemctl stop syntrop-ports.service; fi
    files | while read -r _ to; do drop "$to"; done
    rm -f "$destdir/usr/bin/syntropctl"
    if [ -d "$destdir$prefix/share" ]; then
        shared "$destdir$prefix" | while read -r file; do rm -f "$destdir/usr/share/$file"; done
    fi
    rm -rf "$destdir$prefix" "$destdir/var/cache/syntrop"
    if live; then
        systemctl daemon-reload
        journalctl --update-catalog
    fi
    say "removed; models and other state stay in /var/lib/syntrop, settings in /etc/syntrop"
}

verb=${1:-install}
[ -n "$destdir" ] || [ "$(id -u)" = 0 ] || die "needs root (or DESTDIR=…)"
work=$(mktemp -d)
trap 'rm -rf "$work" "$destdir$prefix.new"' EXIT
trap 'exit 130' INT TERM
case $verb in
install)
    install_packages
    install -d -m 755 "$destdir${prefix%/*}"
    rm -rf "$destdir$prefix.new"
    build "$destdir$prefix.new"
    stop_all
    place "$destdir$prefix.new"
    activate
    ;;
activate) activate ;;
uninstall) uninstall ;;
*) die "usage: install.sh [install|activate|uninstall]" ;;
esac
