#!/bin/sh
# A node's containerd as a registry, for pulls of images that the node has: a CGI program of busybox httpd.
#
# A pull sends HEAD for /NAME/manifests/TAG (PATH_INFO), with the registry's host as ns (QUERY_STRING). The answer has the digest of the
# node's image, whose parts containerd already has.
set -euf

image=$(busybox httpd -d "${QUERY_STRING#ns=}")${PATH_INFO%/manifests/*}:${PATH_INFO##*/}
# REF, TYPE, DIGEST and more.
# shellcheck disable=SC2046  # a list
set -- $(ctr -n k8s.io images ls "name==$image" | sed 1d)
[ $# != 0 ] || { printf 'Status: 404 Not Found\r\n\r\n'; exit; }
size=$(ctr -n k8s.io content get "$3" | wc -c)
printf 'Content-Type: %s\r\nDocker-Content-Digest: %s\r\nContent-Length: %s\r\n\r\n' "$2" "$3" "$size"
