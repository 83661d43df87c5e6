#!/bin/sh
# One machine on systemd: everything in one service, with SQLite and a folder. Run it as root, in a clone or in the folder of
# the installed package, with the configuration as its argument.
#
#   sh examples/recipes/systemd.sh examples/vllm.yaml
set -eu
units=$(cd "$(dirname "$0")/../../deploy/systemd" && pwd)
offpeak config check "$1"
install -d -m 0755 /etc/offpeak
install -m 0644 "$1" /etc/offpeak/offpeak.yaml
[ -e /etc/offpeak/environment ] || install -m 0600 /dev/null /etc/offpeak/environment
install -m 0644 "$units/offpeak.service" /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now offpeak
echo "The first API key: /var/lib/offpeak/api-key. What it does: journalctl -u offpeak -f"
