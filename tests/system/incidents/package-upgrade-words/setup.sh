#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
package() { # VERSION PROGRAM
    mkdir -p "/opt/inc-format/$1/DEBIAN" "/opt/inc-format/$1/usr/bin"
    printf 'Package: inc-format\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a service\n' \
        "$1" >"/opt/inc-format/$1/DEBIAN/control"
    printf '#!/usr/bin/python3\nimport os, time\nprint("version %s")\n%s\n' "$1" "$2" >"/opt/inc-format/$1/usr/bin/inc-format"
    chmod 755 "/opt/inc-format/$1/usr/bin/inc-format"
    dpkg-deb --root-owner-group -Znone -b "/opt/inc-format/$1" "/opt/inc-format/$1.deb" >/dev/null
}
package 1.0-1 'time.sleep(1 << 30)'
package 1.1-1 'raise SystemExit("the plugin was built for version 1.0 and is incompatible with version 1.1")'
dpkg -i /opt/inc-format/1.0-1.deb >/dev/null
systemctl start inc-format.service
