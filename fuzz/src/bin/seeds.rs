//! Writes the seeds of every fuzz target, small valid files, from the captures of the repository.
//!
//! ```text
//! seeds CAPTURES CORPUS        writes CORPUS/<target>/seed-<name>
//! ```

#[path = "../../../crates/capture/tests/trace_dat/build.rs"]
mod build;
#[path = "../../../crates/capture/tests/bytes/mod.rs"]
mod bytes;
#[path = "../../../crates/capture/tests/damage/shrink.rs"]
mod shrink;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use build::{Buffer, Codec, Page, Spec};
use bytes::Bytes;
use shrink::Perf;
use vmtax_guest::job::{Job, JobAnswer, JobCounter, JobOutcome, JobRequest};
use vmtax_guest::order::{FollowingFile, encode};

/// Bytes of a block of compressed data: it holds some records and splits one.
const PIECE: usize = 1500;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [captures, corpus] = arguments.as_slice() else {
        return Err("usage: seeds CAPTURES CORPUS".into());
    };
    let seeds = Seeds { captures, corpus };
    let all = [
        Seeds::perf,
        Seeds::trace_dat,
        Seeds::texts,
        Seeds::bpftrace,
        Seeds::tools,
        Seeds::posted,
        Seeds::run_json,
        Seeds::checkpoints,
        Seeds::profiles,
        Seeds::stats,
        Seeds::configurations,
        Seeds::observed,
        Seeds::monitor,
        Seeds::folders,
        Seeds::outputs,
        Seeds::matrices,
        Seeds::answers,
        Seeds::records,
        Seeds::guest_files,
    ];
    all.into_iter().try_for_each(|make| make(&seeds))
}

struct Seeds<'a> {
    captures: &'a Path,
    corpus: &'a Path,
}

impl Seeds<'_> {
    /// The content of a capture, decompressed.
    fn capture(&self, path: &str) -> Result<Vec<u8>> {
        let bytes = fs::read(self.captures.join(path)).map_err(|e| format!("{path}: {e}"))?;
        Ok(if path.ends_with(".zst") { zstd::decode_all(bytes.as_slice())? } else { bytes })
    }

    /// The files of a folder of captures, each with its name.
    fn folder(&self, path: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let entries = fs::read_dir(self.captures.join(path)).map_err(|e| format!("{path}: {e}"))?;
        let file = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
        };
        entries.map(file).collect()
    }

    /// A seed of a target that reads any recording, and of `recognise`, which finds its format.
    fn write(&self, target: &str, name: &str, bytes: &[u8]) -> Result {
        self.write_one(target, name, bytes)?;
        self.write_one("recognise", &format!("{target}-{name}"), bytes)
    }

    /// A seed of one target.
    fn write_one(&self, target: &str, name: &str, bytes: &[u8]) -> Result {
        let folder = self.corpus.join(target);
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(format!("seed-{name}")), bytes)?)
    }

    /// Outputs of benchmark programs; the first byte selects the adapter.
    fn outputs(&self) -> Result {
        for (name, text) in self.folder("../crates/bench/tests/outputs")? {
            for which in 0..22 {
                let bytes = [&[which], text.as_slice()].concat();
                self.write("bench", &format!("{name}-{which}"), &bytes)?;
            }
        }
        Ok(())
    }

    /// Matrix files of `vmtax bench run`.
    fn matrices(&self) -> Result {
        for name in ["emulated", "confidential"] {
            let path = format!("../examples/bench/{name}.toml");
            self.write("matrix", name, &self.capture(&path)?)?;
        }
        let own = "repeats = 2\ncategories = [\"host\", \"far\"]\n[ssh]\nfar = \"me@host\"\n[[workload]]\nname = \"w\"\n\
                   command = [\"w\", \"{port}\"]\nmetric = \"t\"\nunit = \"s\"\nbetter = \"lower\"\npattern = 't=([0-9.]+)'\n";
        self.write("matrix", "own", own.as_bytes())
    }

    /// A program with one segment, and frames of a process.
    fn guest_files(&self) -> Result {
        let code = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
        let (headers, at) = (64 + 56_u64, 0x40_0000_u64);
        let bytes = headers + code.len() as u64;
        let mut program = b"\x7fELF\x02\x01\x01".to_vec();
        program.resize(16, 0);
        program.extend([2_u16, 62].iter().flat_map(|half| half.to_le_bytes()));
        program.extend(1_u32.to_le_bytes());
        program.extend([at + headers, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
        program.extend(0_u32.to_le_bytes());
        program.extend([64_u16, 56, 1, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
        program.extend([1_u32, 5].iter().flat_map(|half| half.to_le_bytes()));
        program
            .extend([0, at, at, bytes, bytes, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
        program.extend(code);
        self.write_one("guest_files", "program", &program)?;
        self.write_one("guest_files", "frames", b"frame,pages\n7,3\n300,1\n299,1\n512,512\n")
    }

    /// Requests to an agent, and its answers.
    fn answers(&self) -> Result {
        let facts = vec![("kernel".to_owned(), "6.1".to_owned())];
        self.write("answer", "facts", &encode(&JobAnswer::Facts(facts)))?;
        let count = Err("not there".to_owned());
        let outcome = JobOutcome {
            code: Some(0),
            elapsed_ns: 1_000_000,
            stdout: b"t=1.5\n".to_vec(),
            counters: vec![JobCounter { event: "instructions".to_owned(), count }],
            files: vec![FollowingFile { name: "trace/stats".to_owned(), length: 9 }],
            ..JobOutcome::default()
        };
        self.write("answer", "done", &encode(&JobAnswer::Done(outcome)))?;
        let job = Job { client: vec!["w".to_owned()], limit_ms: 1000, ..Job::default() };
        self.write("answer", "request", &encode(&JobRequest::Do(job)))
    }

    fn records(&self) -> Result {
        for (name, record) in
            ["qemu", "bochs", "bochs-svm"].iter().zip(vmtax_lab::imagined::samples())
        {
            self.write("record", name, &record)?;
        }
        Ok(())
    }

    /// Texts as people post them.
    fn posted(&self) -> Result {
        for (name, text) in self.folder("posted/input")? {
            self.write("posted", &name, &text)?;
        }
        Ok(())
    }

    fn profiles(&self) -> Result {
        for name in ["perf.data", "script.txt", "annotate.txt"] {
            self.write("profile", name, &self.capture(&format!("profile/input/{name}"))?)?;
        }
        self.write("profile", "folded", &self.capture("published/s0-plain.host.folded")?)
    }

    /// A folder of `perf record --threads` as one file: the length of a part, `data`, and the parts, each of that length.
    fn folders(&self) -> Result {
        let file = |name: &str| self.capture(&format!("pvm/input/threads/{name}.zst"));
        let part = file("data.3")?;
        let length = u16::try_from(part.len())?;
        let whole =
            [&length.to_le_bytes()[..], &file("data")?, &part, &part, &part, &part].concat();
        self.write_one("perf_folder", "threads", &whole)
    }

    fn configurations(&self) -> Result {
        for case in
            ["p60-split-irqchip", "p62-last-cpu-option-wins", "p63-windows-clock-fragment"]
        {
            for (name, text) in self.texts_of_case(&format!("{case}.toml"))? {
                self.write("configuration", &format!("{case}-{name}"), text.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Short texts that people posted.
    fn observed(&self) -> Result {
        for case in fs::read_dir(self.captures.join("cases"))? {
            let case = case?.file_name().to_string_lossy().into_owned();
            let texts = if case.ends_with(".toml") { self.texts_of_case(&case)? } else { Vec::new() };
            for (_, text) in texts.into_iter().filter(|(name, _)| name == "input") {
                if text.len() <= 4096 {
                    self.write_one("observed", &case, text.as_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// The short texts of a labelled case, by name.
    fn texts_of_case(&self, name: &str) -> Result<Vec<(String, String)>> {
        let case = fs::read_to_string(self.captures.join("cases").join(name))?;
        let case: toml::Table = toml::from_str(&case)?;
        let texts = case.get("text").and_then(toml::Value::as_table).into_iter().flatten();
        Ok(texts.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect())
    }

    /// Answers to `info mtree -f -o` and `info ramblock`.
    fn monitor(&self) -> Result {
        let tree = "FlatView #1\n AS \"memory\", root: system\n  \
                    0000000000100000-0000000003ffffff (prio 0, ram): a @0000000000100000 owner:{obj path=/objects/a}\n";
        self.write_one("monitor", "tree", tree.as_bytes())?;
        let blocks = "pc.bios    4 KiB  0x0000000010000000 0x0000000000040000 0x0000000000040000\n";
        self.write_one("monitor", "blocks", blocks.as_bytes())
    }

    fn stats(&self) -> Result {
        for (name, bytes) in self.folder("perf-stat/input")? {
            self.write("stats", &name, &bytes)?;
        }
        self.write("stats", "kvm", b"exits 1234567\npages_4k 12\npages_2m 3\n")
    }

    fn perf(&self) -> Result {
        let recordings = [
            ("midrun", "amd-midrun/input/midrun.perf.data.zst", 0, 60),
            ("arm64", "arm64/input/7.3-nested.kvm-all.perf.data.zst", 200, 60),
            ("workload", "amd-same-workload/input/workload.perf.data.zst", 3000, 60),
            ("nested", "amd-nested-exact/input/nested-exact.perf.data.zst", 2000, 80),
            ("lost", "amd-cpuid/input/lost.perf.data.zst", 100, 60),
            ("intel", "intel-cpuid/input/intel.perf.data.zst", 500, 60),
            ("sched", "amd-sched/input/sched.perf.data.zst", 1000, 60),
        ];
        for (name, path, skip, samples) in recordings {
            let perf = Perf::read(&self.capture(path)?, skip, samples);
            self.write("perf_data", &format!("{name}-file"), &perf.file(None))?;
            self.write("perf_data", &format!("{name}-file-zstd"), &perf.file(Some(PIECE)))?;
            self.write("perf_data", &format!("{name}-pipe"), &perf.pipe(None))?;
            self.write("perf_data", &format!("{name}-pipe-zstd"), &perf.pipe(Some(PIECE)))?;
        }
        Ok(())
    }

    fn trace_dat(&self) -> Result {
        let recorded = shrink::trace_dat(
            &self.capture("amd-same-workload/input/workload-v6.trace.dat.zst")?,
            10,
            2,
        );
        let specs = [
            ("recorded", recorded),
            ("little", every_record(false, 8)),
            ("big", every_record(true, 8)),
            ("big-32", every_record(true, 4)),
        ];
        for (name, spec) in specs {
            self.write("trace_dat", &format!("{name}-v6"), &spec.v6())?;
            for codec in [Codec::None, Codec::Zlib, Codec::Zstd] {
                let name = format!("{name}-v7-{codec:?}").to_lowercase();
                self.write("trace_dat", &name, &spec.v7(codec))?;
            }
        }
        Ok(())
    }

    fn texts(&self) -> Result {
        let texts = [
            ("ftrace_text", "workload", "amd-same-workload/input/workload.ftrace.txt.zst"),
            ("ftrace_text", "intel", "intel-cpuid/input/intel.ftrace.txt.zst"),
            ("ftrace_text", "nested", "intel-nested/input/intel-nested.ftrace.txt.zst"),
            ("perf_script", "workload", "amd-same-workload/input/workload.script.txt.zst"),
            ("perf_script", "intel", "intel-cpuid/input/intel.script.txt.zst"),
            ("perf_script", "nested", "amd-nested-exact/input/nested-exact.script.txt.zst"),
            ("perf_script", "lost", "amd-nested/input/perf-script-lost.txt"),
            ("perf_script", "arm64", "arm64/input/7.3-nested.kvm-all.script.txt.zst"),
            ("trace_cmd_report", "arm64", "arm64/input/7.3-nested.trace.report.txt.zst"),
            ("trace_cmd_report", "workload", "amd-same-workload/input/workload.trace-cmd.txt.zst"),
            ("trace_cmd_report", "intel", "intel-cpuid/input/intel.trace-cmd.txt.zst"),
            ("trace_cmd_report", "nested", "amd-nested/input/trace-cmd-report.txt"),
            ("trace_cmd_report", "raw", "amd-nested/input/trace-cmd-report-R.txt"),
            ("trace_cmd_report", "latency", "amd-nested/input/trace-cmd-report-l.txt"),
        ];
        for (target, name, path) in texts {
            let whole = self.capture(path)?;
            for (part, skip) in [("start", 0), ("middle", 150), ("later", 900)] {
                let text = shrink::text(&whole, skip, 25);
                self.write(target, &format!("{name}-{part}"), &text)?;
            }
        }
        Ok(())
    }

    fn bpftrace(&self) -> Result {
        for name in ["reasons", "names", "latency"] {
            let text = self.capture(&format!("amd-bpftrace/input/{name}.bpftrace.txt"))?;
            self.write("bpftrace", name, &text)?;
        }
        Ok(())
    }

    /// Outputs of other tools.
    fn tools(&self) -> Result {
        for (name, bytes) in self.folder("tools/input")? {
            let target = match &*name {
                "latency-amd.txt" => "bpftrace",
                name if name.starts_with("perf-") => "profile",
                _ => "counts",
            };
            self.write(target, &name, &bytes)?;
        }
        let table = self.capture("amd-two-vms/expected/two-vms.kvmstat-vmexit.txt")?;
        self.write("counts", "perf-kvm", &table)
    }

    fn checkpoints(&self) -> Result {
        use vmtax_pageops::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
        let mut cpu = vmtax_pageops::Cpu::best();
        let dir = tempfile::tempdir()?;
        let parent = dir.path().join("parent");
        for (name, zstd, child, live) in [
            ("parent", None, false, false),
            ("zstd", Some(1), false, false),
            ("child", None, true, false),
            ("live", Some(1), true, true),
        ] {
            let path = dir.path().join(name);
            let parent = child.then(|| Checkpoint::open(&parent)).transpose()?;
            let mut writer = CheckpointWriter::create(
                &path,
                CheckpointOptions { zstd, parent, live },
                &mut cpu,
            )?;
            writer.region("m", 64)?;
            let mut pages: Vec<u8> = (0..4 * 4096u32).map(|i| (i / 5 * 7) as u8).collect();
            pages[4096..8192].fill(9);
            pages[100] = u8::from(child);
            writer.pages(3, &pages)?;
            if live {
                pages[5000] ^= 1;
                writer.begin_layer()?;
                writer.region_again(0)?;
                writer.pages(4, &pages[4096..])?;
            }
            writer.finish(&mut &b"devices"[..], b"{}")?.publish()?;
            self.write_one("checkpoint", name, &fs::read(&path)?)?;
        }
        Ok(())
    }

    fn run_json(&self) -> Result {
        use vmtax_store::{CreateOptions, MANIFEST, RunWriter};
        let folder = tempfile::tempdir()?;
        let folder = folder.path().join("run");
        let mut options = CreateOptions { interval_ns: 1_000_000, ..CreateOptions::default() };
        options.labels.insert("workload".to_owned(), "none".to_owned());
        let mut writer = RunWriter::create(&folder, &options)?;
        writer.time(&vmtax_events::TimeRow { wall_ns: 7, guest_ns: 7, ..Default::default() })?;
        let mut recording = vmtax_events::Recording::default();
        recording.vms.push(vmtax_events::Vm {
            id: 1,
            name: "vm".to_owned(),
            inferred: true,
            ..Default::default()
        });
        let mut losses = vmtax_events::Losses::default();
        losses.truncated.push("the input ends at byte 4".to_owned());
        writer.finish(&recording, &losses)?;
        self.write_one("run_json", "finished", &fs::read(folder.join(MANIFEST))?)
    }
}

const EXIT: &str = "name: kvm_exit\nID: 300\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:u32 isa;\toffset:12;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned int vcpu_id;\toffset:16;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"\"\n";
const ENTRY: &str = "name: kvm_entry\nID: 301\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"\"\n";

/// Every kind of record of a ring buffer, in small pages.
fn every_record(big: bool, long: u32) -> Spec {
    let page_size = 1024;
    let page = |start| Page::new(big, long, start);
    let exit = |reason| {
        let mut out = Bytes::new(big);
        out.u16(300).u16(0).u32(77).u32(reason).u32(2).u32(0);
        out.bytes
    };
    let entry = || {
        let mut out = Bytes::new(big);
        out.u16(301).u16(0).u32(77).u32(0);
        out.bytes
    };
    let first = page(1_000)
        .record(0, &exit(0x72))
        .record(7, &entry())
        .special(30, 5, 2, &[])
        .record(3, &exit(0x78))
        .special(29, 4, 8, &[0xff; 4])
        .long_record(6, &entry())
        .special(29, 0, 0, &[0xff; 8]);
    let second = page(400_000_000)
        .lost(Some(41))
        .special(31, 9, 4, &[])
        .record(0, &exit(0x7c))
        .record(1, &entry());
    let third = page(700_000_000).lost(None).record(0, &exit(0x400));
    let cpu0 = [first, second, third].map(|p| p.finish(page_size)).concat();
    let cpu1 = page(500).record(0, &exit(0x60)).finish(page_size);
    let instance = page(600).record(2, &exit(0x60)).finish(page_size);
    let mut tsc = Bytes::new(big);
    tsc.u32(3).u32(1).u64(0);
    let mut stat = Bytes::new(big);
    stat.put(b"CPU: 0\noverrun: 41\ndropped events: 2\n\0");
    Spec {
        big,
        page_size,
        header_info: build::header_info(big, long, page_size),
        event_formats: build::event_formats(big, "kvm", &[EXIT, ENTRY]),
        cmdlines: "77 cpu 0/KVM\n".to_owned(),
        options: vec![
            (2, stat.bytes),
            (4, b"local [x86-tsc]\0".to_vec()),
            (5, b"Linux host1 6.9.0 x86_64\0".to_vec()),
            (13, b"vm\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
            (14, tsc.bytes),
            (32, b"77 70\n\0".to_vec()),
        ],
        buffers: vec![
            Buffer { name: "", cpus: vec![(0, cpu0), (1, cpu1)] },
            Buffer { name: "extra", cpus: vec![(0, instance)] },
        ],
    }
}
