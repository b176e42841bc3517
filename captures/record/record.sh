#!/bin/sh
# record.sh CASE OUTPUT-FOLDER: builds the case's payloads, boots the emulated host with it, unpacks what it recorded.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case=$1; out=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/cases/$case/"* "$here/vm.sh" "$here/go" "$folder/"
while read -r name source definitions; do
  # shellcheck disable=SC2086
  "$here/payload.sh" "$folder/$name.bin" "$source" $definitions
done <"$here/cases/$case/payloads"
case $case in
  intel-*) cp "$TINYVMM" "$folder/tinyvmm"; "$here/bochs.sh" "$folder" "$out" ;;
  *) "$here/host.sh" "$folder" "$out" ;;
esac
