//! Threads that only ever get a CPU have a name: sched_switch of a binary recording holds it.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

mod bytes;
#[path = "perf_data/build.rs"]
#[expect(dead_code, reason = "this file needs few of its records")]
mod perf;
#[path = "trace_dat/build.rs"]
#[expect(dead_code, reason = "this file needs few of its records")]
mod trace;

use std::collections::BTreeMap;

use vmtax_capture::import::{self, HEAD, ImportOptions};
use vmtax_capture::{Error, Feed, ImportFormat, ImportSource};
use vmtax_events::{Event, EventKind};

#[derive(Default)]
struct NextNames {
    names: BTreeMap<u32, String>,
    switches: Vec<u32>,
}

impl Feed for NextNames {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        if let EventKind::Switch { next_tid, .. } = event.kind {
            self.switches.push(next_tid);
        }
        Ok(())
    }

    fn thread_name(&mut self, _: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.names.insert(tid, name.to_owned());
        Ok(())
    }
}

fn read(bytes: &[u8]) -> NextNames {
    let format = ImportFormat::recognise(&bytes[..bytes.len().min(HEAD)]).unwrap();
    let mut names = NextNames::default();
    let _ =
        import::import(format, ImportSource::Random(&bytes), ImportOptions::default(), &mut names)
            .unwrap();
    names
}

const SWITCH: &str = "name: sched_switch\nID: 300\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
    \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
    \nprint fmt: \"\"\n";

/// A switch from a vCPU thread to `tid`.
fn switch(big: bool, tid: u32, name: &str) -> Vec<u8> {
    let number = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut raw = vec![0; 64];
    let id = 300u16;
    raw[..2].copy_from_slice(&if big { id.to_be_bytes() } else { id.to_le_bytes() });
    raw[4..8].copy_from_slice(&number(78));
    raw[8..17].copy_from_slice(b"CPU 0/KVM");
    raw[24..28].copy_from_slice(&number(78));
    raw[40..40 + name.len()].copy_from_slice(name.as_bytes());
    raw[56..60].copy_from_slice(&number(tid));
    raw
}

#[test]
fn of_perf_data() {
    for big in [false, true] {
        let mut spec = perf::Spec {
            big,
            attrs: vec![perf::Attr::tracepoint(perf::sample::USUAL, &[11])],
            formats: vec![SWITCH.to_owned()],
            ..perf::Spec::default()
        };
        let all = [(901, "stress-ng"), (0, "swapper/0"), (901, "renamed")];
        for (time, (tid, name)) in (100u64..).zip(all) {
            let raw = switch(big, tid, name);
            let sample =
                perf::Sample { id: 11, pid: 70, tid: 78, time, raw, ..perf::Sample::default() };
            spec.sample(0, &sample);
        }
        for bytes in [spec.file(), spec.pipe()] {
            let names = read(&bytes);
            assert_eq!(names.switches, [901, 0, 901]);
            assert_eq!(names.names.get(&901).map(String::as_str), Some("stress-ng"));
            assert!(!names.names.contains_key(&0));
        }
    }
}

#[test]
fn of_trace_dat() {
    for big in [false, true] {
        let page = trace::Page::new(big, 8, 1000)
            .record(0, &switch(big, 901, "stress-ng"))
            .record(5, &switch(big, 902, "ksmd"))
            .finish(1024);
        let spec = trace::Spec {
            big,
            page_size: 1024,
            header_info: trace::header_info(big, 8, 1024),
            event_formats: trace::event_formats(big, "sched", &[SWITCH]),
            cmdlines: "78 qemu\n902 known\n".to_owned(),
            options: Vec::new(),
            buffers: vec![trace::Buffer { name: "", cpus: vec![(0, page)] }],
        };
        for bytes in [spec.v6(), spec.v7(trace::Codec::Zstd)] {
            let names = read(&bytes);
            assert_eq!(names.switches, [901, 902]);
            let of = |tid| names.names.get(&tid).map(String::as_str);
            assert_eq!((of(901), of(902)), (Some("stress-ng"), Some("known")));
        }
    }
}
