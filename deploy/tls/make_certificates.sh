#!/usr/bin/env bash
# Certificates for an encrypted cluster, and the Dask configuration that uses them.
#
#   make_certificates.sh FOLDER [PLACE]
#
# FOLDER  where to write dask.yaml, ca.pem, dask.pem, dask-key.pem and authority/ca-key.pem; must not hold them yet
# PLACE   where scheduler, workers and client will find the folder (default: where it is), such as /etc/dask in a pod
#
# With DASK_CONFIG=PLACE in its environment each part of the cluster (also dkl fit --scheduler tls://...) talks TLS
# alone, and only to parts whose certificate this authority signed. authority/ca-key.pem signs others: no part of the
# cluster needs it.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || $1 == -* ]]; then
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
mkdir -p "$1/authority"
folder=$(cd "$1" && pwd)
place=${2:-$folder}
days=${DKL_CERTIFICATE_DAYS:-365}

if [[ -e $folder/ca.pem ]]; then
    echo "$folder/ca.pem is there already: choose another folder, or remove it to begin anew" >&2
    exit 1
fi

umask 077
request=$(mktemp)
trap 'rm -f "$request"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" -subj "/CN=dkl authority" \
    -keyout "$folder/authority/ca-key.pem" -out "$folder/ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=dkl" \
    -keyout "$folder/dask-key.pem" -out "$request" 2>/dev/null
openssl x509 -req -in "$request" -CA "$folder/ca.pem" -CAkey "$folder/authority/ca-key.pem" -set_serial 1 -days "$days" \
    -extfile <(echo "extendedKeyUsage = serverAuth, clientAuth") -out "$folder/dask.pem" 2>/dev/null

cat >"$folder/dask.yaml" <<END
distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      ca-file: $place/ca.pem
      scheduler: {cert: $place/dask.pem, key: $place/dask-key.pem}
      worker: {cert: $place/dask.pem, key: $place/dask-key.pem}
      client: {cert: $place/dask.pem, key: $place/dask-key.pem}
END
echo "wrote $folder; use it with DASK_CONFIG=$place"
