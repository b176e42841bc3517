#!/bin/sh
# finish.sh RECORDED-FOLDER CASE-FOLDER: oracles, compression, and the case's README beside them.
# Recordings are packed with xz -9e, texts only when they are over 64 KiB; trace.dat with zstd inside stays as it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
from=$1; to=$2
case $to in /*) ;; *) to=$PWD/$to ;; esac
rm -rf "$to"
mkdir -p "$to"
cp "$from"/*.perf.data "$from"/*.trace.dat "$from"/*.ftrace.txt "$from"/*.bpftrace.* "$to/" 2>/dev/null || true
chmod 644 "$to"/*
cd "$to"
for file in *.perf.data; do [ ! -e "$file" ] || "$here/oracle.sh" . "$file"; done
for file in *-v6.trace.dat *-v7-zstd.trace.dat; do
  [ ! -e "$file" ] || { trace-cmd report -i "$file" >"${file%-v[67]*}.trace-cmd.txt"; }
done
for file in *; do
  case $file in
    *-v7-zstd.trace.dat) ;;
    *.txt | *.json) [ "$(wc -c <"$file")" -lt 65536 ] || xz -9e "$file" ;;
    *) xz -9e "$file" ;;
  esac
done
cp "$here/cases/$(basename "$to")/"README.md "$here/cases/$(basename "$to")/"*.bt . 2>/dev/null || true
ls -l
