#!/bin/sh
# Runs each .flat program of a built tree of kvm-unit-tests as a guest (vmtax lab run --flat) and prints a table in Markdown: verdict, exits, processors that
# the tree's own configuration gives it (vmtax gives one), and the first lines that say why it did not pass.
#
#   sh kvm-unit-tests.sh TREE [flags of vmtax lab run, such as --host intel --kernel debian:6.12]
#
# VMTAX=program, LIMIT=wall-clock time of each program (120s), ONLY='tsc msr' names some, OUT=folder for what each printed (kept; NAME.txt and NAME.err).
# Of vmexit, whose tests take billions of instructions each, `cpuid` is run. Exit code: 1 if a program has no verdict.
set -u
tree=${1:?usage: sh kvm-unit-tests.sh TREE [flags of vmtax lab run]}
shift
vmtax=${VMTAX:-vmtax}
limit=${LIMIT:-120s}
out=${OUT:-$(mktemp -d)}
configuration=$tree/x86/unittests.cfg
[ -e "$configuration" ] || { echo "$tree: has no x86/unittests.cfg, so it is no tree of kvm-unit-tests" >&2; exit 2; }
mkdir -p "$out"

# The most processors that a test of this file gets.
processors() {
  awk -v file="$1" '/^\[/ { smp = 1; own = 0 } /^file *=/ { own = ($3 == file); if (own && smp > most) most = smp }
    /^smp *=/ { smp = $3 + 0; if (own && smp > most) most = smp } END { print most ? most : 1 }' "$configuration"
}

# Text that may stand in a cell.
cell() { tr '|\t' '/ ' | cut -c1-160; }

complete=0
echo "| program | verdict | exits | processors | what it reports |"
echo "|---|---|---|---|---|"
for flat in ${ONLY:-$(cd "$tree/x86" && for one in *.flat; do [ -e "$one" ] && echo "${one%.flat}"; done)}; do
  append=
  [ "$flat" != vmexit ] || append=cpuid
  "$vmtax" lab run --flat "$tree/x86/$flat.flat" ${append:+--append "$append"} --limit "$limit" "$@" > "$out/$flat.txt" 2> "$out/$flat.err"
  code=$?
  # 0 and 6 have a verdict of the program; otherwise the first line of the error is why not.
  case $code in
  0 | 6) verdict=$(sed -n "s/^$flat\.flat: \(.*\) (exit code .*/\1/p" "$out/$flat.txt" | tail -n 1) ;;
  *) verdict="none (vmtax: exit code $code)" complete=1 ;;
  esac
  exits=$(sed -n 's/^\([0-9]*\) exits, counted by the kernel: .*/\1/p' "$out/$flat.txt" | tail -n 1)
  if [ "$code" = 0 ] || [ "$code" = 6 ]; then
    reported=$(grep -E '^(FAIL|SKIP)' "$out/$flat.txt" | head -n 2 | paste -sd ';' | cell)
    [ "$verdict" = passed ] && reported=$(grep -E '^SUMMARY' "$out/$flat.txt" | tail -n 1 | cell)
  else
    reported=$(head -n 1 "$out/$flat.err" | sed 's/^vmtax: //' | cell)
  fi
  echo "| \`$flat${append:+ $append}\` | $verdict | ${exits:--} | $(processors "$flat.flat") | $reported |"
done
exit "$complete"
