#!/bin/sh
# Makes the pictures of the documentation from real runs: ./x pictures [KERNEL [MODULES]]
#
#   report.png           the page of a shipped recording (a VM that nests, on an emulated AMD host)
#   timeline.svg         what exit tax and contention are: two vCPUs on one processor (captures/amd-sched)
#   top.svg              the screen of `vmtax top --replay` of the same recording
#   exit.svg             flame graph of one CPUID of a nested guest, from `vmtax lab run --profile`
#   guest-memfd.png      what vmtax explain says of a run on guest_memfd, beside one on THP (captures/cases/lab-guest-memfd)
#   published-td.png     the same of the published recordings of a TDX guest and a plain VM (captures/published)
#   network.png          exits of a request and a sleep by cause, VMs of QEMU on an emulated host (captures/lab-network/polling)
#   bounce.svg           I/O through a bounce buffer and on converted pages (captures/lab-memory/amd-6.12-bounce)
#   two-kernels.svg      the same on a second kernel, coloured by the difference
#
# KERNEL is the second kernel as `vmtax lab run --kernel` takes it (debian:6.12, from Debian's archive), and MODULES the modules of an image.
set -eu
vmtax=$(realpath "$1") screen=$(realpath "$2")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

say() { printf 'x: %s\n' "$*" >&2; }

# The nth flame graph of a page as a file of its own, with this title. The page's style sheet has the fonts.
flame() {
  awk -v RS='<div class="scroll flame"' -v nth="$2" 'NR == nth + 1 {
    sub(/^[^<]*/, ""); sub(/<svg /, "<svg style=\"font-family: monospace; font-size: 12px\" ")
    end = 0; depth = 0; rest = $0
    while (match(rest, /<\/?svg/)) {
      depth += substr(rest, RSTART, 2) == "</" ? -1 : 1
      end += RSTART + RLENGTH - 1
      rest = substr(rest, RSTART + RLENGTH)
      if (depth == 0) break
    }
    print substr($0, 1, end) ">"
  }' "$1" | sed -e 's/<text id="[^"]*-\(unzoom\|search\|details\|matched\)"[^>]*>[^<]*<\/text>//g' \
    -e 's/fill="url([^)]*)"/fill="#ececec"/' -e "s|\(<text id=\"[^\"]*-title\"\)\([^>]*\)>|\1 text-anchor=\"middle\"\2>$3|"
}

# The chart of bounce buffers and conversions as a file of its own, in the page's light colours. The page names the lines in a table beside it, the file at its top:
# the titles of the lines, two in a row.
chart() {
  awk -v RS='</svg>' '{ at = index($0, "<svg class=\"crossing\""); if (at) { print substr($0, at); exit } }' "$1" |
    sed -e 's|<svg class="crossing"|<svg xmlns="http://www.w3.org/2000/svg"|' -e '0,/>/s|>|><style>text { fill: #56606c; font: 12px sans-serif } .grid { stroke: #c4cad1 } polyline { fill: none; stroke-width: 2.5 } .line-s0 { stroke: #0072b2 } .line-s1 { stroke: #e69f00; stroke-dasharray: 7 3 } .line-s2 { stroke: #009e73; stroke-dasharray: 3 3 } .line-s3 { stroke: #cc79a7; stroke-dasharray: 10 3 2 3 }</style>|' |
    awk -v RS='</polyline>' '{ if (NR > 1) printf "</polyline>"; printf "%s", $0 } match($0, /<title>[^<]*/) {
      name = substr($0, RSTART + 7, RLENGTH - 7); x = 84 + lines % 2 * 200; y = 28 + int(lines / 2) * 18
      key = key sprintf("<polyline class=\"line-s%d\" points=\"%d,%d %d,%d\"/><text x=\"%d\" y=\"%d\">%s</text>", lines++, x, y, x + 30, y, x + 38, y + 4, name)
    } END { print key "</svg>" }'
}

# The kernel of a run.
kernel() { sed -n 's/^  host .*, kernel \([^,]*\),.*/\1/p' "$work/$1.txt"; }

say 'the report of a recording'
zstd -dqf -o "$work/perf.data" "$root/captures/amd-nested/input/all.perf.data.zst"
# By its name alone: the page shows the path.
(cd "$work" && "$vmtax" report perf.data --format html -o report.html)
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" \
  --window-size=1280,900 --screenshot="$here/report.png" "file://$work/report.html" 2> /dev/null

say 'what the tax is'
zstd -dqf -o "$work/sched.perf.data" "$root/captures/amd-sched/input/sched.perf.data.zst"
perf script -i "$work/sched.perf.data" > "$work/sched.txt" 2> /dev/null
"$vmtax" report "$work/sched.perf.data" --format json -o "$work/sched.json"
"$here/timeline" "$work/sched.txt" "$work/sched.json" > "$here/timeline.svg"

say 'a screen of vmtax top'
"$screen" "$work/perf.data" 100 28 End Enter Tab > "$here/top.svg"

say 'a run on guest_memfd beside one on THP'
case=$root/captures/cases/lab-guest-memfd
"$vmtax" explain "$case/gmem" --against "$case/thp" --format html -o "$work/explain.html" || [ $? -lt 2 ]
sed -i "s|$root/||g" "$work/explain.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" \
  --window-size=1100,960 --screenshot="$here/guest-memfd.png" "file://$work/explain.html" 2> /dev/null

say 'the published recordings of a TDX guest and a plain VM'
published=$root/captures/published
for vm in plain td; do
  "$vmtax" import "$published/s0-$vm.txt" -o "$work/$vm" --isa vmx --host-profile "$published/s0-$vm.host.folded" \
    --guest-instructions "$published/s0-$vm.annotate" --stats "$published/s0-$vm.pages"
done
( cd "$work" && "$vmtax" explain td --against plain --length 10s --format html -o published.html )
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" \
  --window-size=1100,830 --screenshot="$here/published-td.png" "file://$work/published.html" 2> /dev/null

say 'bounce buffers beside conversions'
"$vmtax" report "$root/captures/lab-memory/amd-6.12-bounce" --format html -o "$work/bounce.html"
chart "$work/bounce.html" > "$here/bounce.svg"

say 'traffic with VMs of QEMU on an emulated host'
"$vmtax" bench compare "$root/captures/lab-network/polling" --format html -o "$work/network.html"
# The head of the page and the section alone.
awk -v RS='<section ' 'NR == 1 { sub(/<header.*/, ""); printf "%s", $0 } /^id="traffic"/ { printf "<section %s", $0 }' \
  "$work/network.html" > "$work/traffic.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" \
  --window-size=1000,424 --screenshot="$here/network.png" "file://$work/traffic.html" 2> /dev/null

say 'one CPUID of a nested guest on an emulated AMD host'
"$vmtax" lab run --nested --profile --operation cpuid -o "$work/first" > "$work/first.txt"
"$vmtax" report "$work/first" --vm cpuid@L2 --format html -o "$work/first.html"
flame "$work/first.html" 1 "One CPUID in L2 on an emulated AMD host, Linux $(kernel first): instructions by function and level" > "$here/exit.svg"

second=${1:-debian:6.12}
say "the same on $second"
"$vmtax" lab run --nested --profile --operation cpuid --kernel "$second" ${2:+--modules "$2"} -o "$work/second" > "$work/second.txt"
"$vmtax" lab compare "$work/first" "$work/second" --format html -o "$work/compare.html"
flame "$work/compare.html" 2 "One CPUID in L2: Linux $(kernel second) (width) and $(kernel first); red: more instructions, blue: fewer" > "$here/two-kernels.svg"
