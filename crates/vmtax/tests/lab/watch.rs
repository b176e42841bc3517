//! `vmtax export` and `vmtax top` in the emulated host, beside a recorder of the same run: the same counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::record::observe_in;
use crate::run::printed;

/// A server of metrics, asked again and again; a screen whose terminal is a file; and a recorder.
const WATCH: &str = r#"
mkdir -p /dev/pts
mount -t devpts none /dev/pts
ip link set lo up
./vmtax export --interval 500ms >export.said 2>&1 & server=$!
./vmtax record -o live --interval 500ms & recorder=$!
ask() {
    exec 3<>/dev/tcp/127.0.0.1/9435
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    cat <&3 >answer
    exec 3>&-
    while read -r line; do
        case $line in vmtax_exits_total*) echo "$line" ;; esac
    done <answer >>answers
}
# Which keys are pressed when: all, then the end.
keys() {
    while [ ! -e over ]; do sleep 2; done
    sleep 6
    printf a
    sleep 2
    printf q
    sleep 2
}
keys | SHELL=/bin/bash script -q -f -c 'stty rows 24 cols 80; ./vmtax top --interval 5s; echo $? >top.code' screen >top.said 2>&1 & top=$!
end() {
    sleep 2
    ask
    : >over
    wait $top
    kill -INT $recorder $server
    wait $recorder
    wait $server; echo $? >server.code
    exit 0
}
trap end INT
sleep 10
while kill -0 $server; do ask; sleep 1; done 2>/dev/null
"#;

#[test]
fn what_is_exported_and_shown_is_what_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let brought = [
        "/usr/bin/sleep",
        "/usr/bin/cat",
        "/usr/bin/mkdir",
        "/usr/bin/mount",
        "/usr/bin/script",
        "/usr/bin/stty",
        "/usr/sbin/ip",
    ];
    let found = observe_in("/bin/bash", folder.path(), WATCH, (&brought, &[]));
    let said = |name: &str| fs::read_to_string(found.join(name)).unwrap_or_default();
    assert_eq!(
        (said("server.code").trim(), said("top.code").trim()),
        ("0", "0"),
        "{}",
        said("top.said")
    );
    exported(&found);
    shown(&found);
}

/// Every series ends where the recording says; those of VMs that ended have been there before.
fn exported(found: &Path) {
    let live = found.join("live");
    let recorded = exits(&printed(&["report", live.to_str().unwrap(), "--format", "prometheus"]));
    let answered = exits(&fs::read_to_string(found.join("answers")).unwrap());
    assert!(recorded.len() > 10, "{recorded:?}");
    assert_eq!(answered, recorded);
    let last = fs::read_to_string(found.join("answer")).unwrap();
    assert!(last.contains("vmtax_losses_total{what=\"recorder-lost\"} 0"), "{last}");
    assert!(last.ends_with("# EOF\n"));
}

/// The most that each series of exits counted.
fn exits(text: &str) -> BTreeMap<String, u64> {
    let mut most = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("vmtax_exits_total")) {
        let (series, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        let known = most.entry(series.to_owned()).or_insert(count);
        *known = count.max(*known);
    }
    most
}

/// The last screen has the recording's counts of each VM that it shows, and the process of all of them is one.
fn shown(found: &Path) {
    let typed = fs::read(found.join("screen")).unwrap();
    let text = String::from_utf8_lossy(&typed);
    let (screen, after) = text.rsplit_once("\u{1b}[?1049l").unwrap();
    // The terminal was given back.
    assert!(after.contains("\u{1b}[?25h"), "{after:?}");
    // What was painted first, before anything was counted.
    let first = screen.split("\u{1b}[0m\u{1b}[?25l").next().unwrap();
    let first = crate::terminal::lines(first);
    assert!(first.contains(&" No VM runs; waiting.".to_owned()), "{first:#?}");
    let lines = crate::terminal::lines(screen);
    assert!(lines.iter().any(|line| line.ends_with(" ended init")), "{lines:#?}");
    let live = found.join("live");
    let by_vm = ["--event", "vmexit", "--by", "vm", "--format", "csv"];
    let csv = printed(&[&["report", live.to_str().unwrap()], &by_vm[..]].concat());
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let place = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let counts: BTreeMap<&str, u64> = csv
        .lines()
        .filter(|line| line.starts_with("vmexit,"))
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[place("vm")], cells[place("count")].parse().unwrap())
        })
        .collect();
    let mut shown = 0;
    for line in lines.iter().skip(6) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [id, _, count, ..] = words.as_slice()
            && let Some(expected) = counts.get(id)
        {
            assert_eq!(count.replace(',', "").parse(), Ok(*expected), "{lines:#?}\n{csv}");
            shown += 1;
        }
    }
    assert!(shown > 0 && lines[0].contains("all since the start"), "{lines:#?}\n{csv}");
}
