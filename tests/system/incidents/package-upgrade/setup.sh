#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
package() { # VERSION PROGRAM
    mkdir -p "/opt/inc-pack/$1/DEBIAN" "/opt/inc-pack/$1/usr/bin"
    printf 'Package: inc-pack\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a service\n' \
        "$1" >"/opt/inc-pack/$1/DEBIAN/control"
    printf '#!/usr/bin/python3\nimport os, time\nprint("version %s")\n%s\n' "$1" "$2" >"/opt/inc-pack/$1/usr/bin/inc-pack"
    chmod 755 "/opt/inc-pack/$1/usr/bin/inc-pack"
    dpkg-deb --root-owner-group -Znone -b "/opt/inc-pack/$1" "/opt/inc-pack/$1.deb" >/dev/null
}
package 1.0-1 'time.sleep(1 << 30)'
package 1.1-1 'os.kill(os.getpid(), 11)'
dpkg -i /opt/inc-pack/1.0-1.deb >/dev/null
systemctl start inc-pack.service
