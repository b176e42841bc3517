//! Randomly composed VMs, saved and restored; QEMU's own copies of their memory (pmemsave) are compared bit by bit.
//!
//! Their memory is of every backend, in NUMA nodes and DIMMs, beside files that are none of it: spare backends and disks of the same length,
//! and a file that took the path of the memory since.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;

use super::guest::{Monitor, PATIENCE, listens};
use super::{image, mem, name, refused};

const MIB: u64 = 1 << 20;
/// Where in its file a block begins that does not begin with it.
const OFFSET: u64 = 16 * MIB;
/// The guest-physical address of the first DIMM, and the distance to the next.
const DIMMS: u64 = 4 << 30;
const BETWEEN: u64 = 128 * MIB;
/// The version from which on a memory-backend-file may begin anywhere in its file, and from which on QEMU puts memfds into the state of the
/// devices.
const NEWER: (u32, u32) = (8, 1);

/// The flag of a save after which the VM does not run.
const STOPPED: &str = "--stopped";

/// Numbers at random, of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn is_one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BackendKind {
    /// A nameless file in /dev/shm.
    Nameless,
    /// A file of this name, whose path is made anew once QEMU has it.
    Named,
    /// A file of this name, from [`OFFSET`] on.
    At,
    /// A memfd.
    Memfd { share: bool },
    /// Anonymous memory.
    Ram { share: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DimmPlace {
    /// A NUMA node; the only one is the machine's memory.
    Node,
    Dimm {
        hotplugged: bool,
    },
    /// Nothing uses it.
    Spare,
}

#[derive(Clone, Debug)]
pub(super) struct SoakBlock {
    pub(super) id: String,
    kind: BackendKind,
    place: DimmPlace,
    mib: u64,
}

/// What a VM is made of.
#[derive(Debug)]
pub(super) struct Composition {
    seed: u64,
    machine: &'static str,
    processors: &'static str,
    pub(super) blocks: Vec<SoakBlock>,
    /// Disks of the length of its memory; of each, whether its name is removed once QEMU has it.
    disks: Vec<bool>,
    /// Flags of each save. Those that leave the VM stopped are restored; each has the one before as parent if it says so.
    saves: Vec<Vec<&'static str>>,
}

impl Composition {
    /// Of these blocks, each of 16 MiB, without disks, and saved once.
    pub(super) fn of(blocks: &[(BackendKind, DimmPlace)]) -> Composition {
        let block = |(number, (kind, place)): (usize, &(BackendKind, DimmPlace))| {
            let id = format!("b{number}");
            SoakBlock { id, kind: *kind, place: *place, mib: 16 }
        };
        Composition {
            seed: 1,
            machine: "q35",
            processors: "1",
            blocks: blocks.iter().enumerate().map(block).collect(),
            disks: Vec::new(),
            saves: vec![vec![STOPPED]],
        }
    }

    /// At random.
    fn new(seed: u64) -> Composition {
        let random = &mut Random(seed);
        let is_newer = version() >= NEWER;
        let saved = if is_newer {
            vec![BackendKind::Nameless, BackendKind::Named, BackendKind::At]
        } else {
            // Shared memory without a file can be opened by root alone.
            let ram = BackendKind::Ram { share: rustix::process::geteuid().is_root() };
            vec![BackendKind::Nameless, BackendKind::Named, BackendKind::Memfd { share: true }, ram]
        };
        let private = [BackendKind::Memfd { share: false }, BackendKind::Ram { share: false }];
        let any = [&saved[..], &private].concat();
        // Often of one length, which tells nothing apart.
        let common = random.one_of(&[4, 8, 12]);
        let mut blocks = Vec::new();
        let mut add = |random: &mut Random, place: DimmPlace, kinds: &[BackendKind]| {
            let mib = if random.is_one_in(4) { 4 * (1 + random.below(4)) } else { common };
            // Not in the order in which QEMU makes them.
            let id = format!("{}{}", random.one_of(&["a", "m", "z"]), blocks.len());
            blocks.push(SoakBlock { id, kind: random.one_of(kinds), place, mib });
        };
        add(random, DimmPlace::Node, &saved);
        for _ in 0..random.below(3) {
            add(random, DimmPlace::Node, &any);
        }
        for _ in 0..random.below(3) {
            let hotplugged = random.is_one_in(2);
            add(random, DimmPlace::Dimm { hotplugged }, &any);
        }
        for _ in 0..random.below(3) {
            add(random, DimmPlace::Spare, &any);
        }
        let disks = (0..random.below(3)).map(|_| random.is_one_in(2)).collect();
        let save = |random: &mut Random| {
            let all = ["--live", "--zstd", "--parent"];
            all.into_iter().filter(|_| random.is_one_in(2)).collect()
        };
        let mut saves: Vec<Vec<_>> = (0..=random.below(3)).map(|_| save(random)).collect();
        // The others go on by themselves.
        let last = saves.len() - 1;
        for (number, flags) in saves.iter_mut().enumerate() {
            if number == last || !random.is_one_in(3) {
                flags.push(STOPPED);
            }
        }
        Composition {
            seed,
            machine: random.one_of(&["q35", "pc"]),
            processors: random.one_of(&["1", "2", "1,maxcpus=3"]),
            blocks,
            disks,
            saves,
        }
    }

    fn of_place(&self, wanted: impl Fn(DimmPlace) -> bool) -> impl Iterator<Item = &SoakBlock> {
        self.blocks.iter().filter(move |block| wanted(block.place))
    }

    /// Memory of the nodes, MiB.
    fn nodes_mib(&self) -> u64 {
        self.of_place(|place| place == DimmPlace::Node).map(|block| block.mib).sum()
    }

    /// DIMMs and their addresses.
    fn dimms(&self) -> impl Iterator<Item = (&SoakBlock, u64)> {
        let all = self.of_place(|place| matches!(place, DimmPlace::Dimm { .. }));
        all.zip((DIMMS..).step_by(BETWEEN as usize))
    }

    /// Guest-physical memory: addresses and bytes.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges = vec![(0, self.nodes_mib() * MIB)];
        ranges.extend(self.dimms().map(|(block, address)| (address, block.mib * MIB)));
        ranges
    }

    /// The firmware, which fills all memory but that below 1 MiB, where it is itself.
    fn firmware(&self) -> Vec<u8> {
        const TABLE: usize = 0x8000;
        let mut firmware = filler().to_vec();
        let mut ranges = self.ranges();
        ranges[0] = (MIB, ranges[0].1 - MIB);
        let mut words = vec![self.seed.wrapping_mul(2) | 1, ranges.len() as u64];
        words.extend(ranges.iter().flat_map(|(start, bytes)| [*start, *bytes]));
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        firmware[TABLE..][..bytes.len()].copy_from_slice(&bytes);
        firmware
    }
}

/// The version of QEMU.
fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = Command::new("qemu-system-x86_64").arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let number = text.split_ascii_whitespace().nth(3).unwrap();
        let mut parts = number.split('.').map(|part| part.parse().unwrap());
        (parts.next().unwrap(), parts.next().unwrap())
    })
}

/// filler.S, assembled.
fn filler() -> &'static [u8] {
    static FILLER: OnceLock<Vec<u8>> = OnceLock::new();
    FILLER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (object, rom) = (folder.path().join("filler.o"), folder.path().join("filler.rom"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mem/filler.S");
        let run = |command: &mut Command| assert!(command.status().unwrap().success());
        run(Command::new("gcc").args(["-c", "-x", "assembler", "-o"]).arg(&object).arg(source));
        let flags = ["-Ttext", "0xf0000", "-e", "0xf0000", "--oformat", "binary", "-o"];
        run(Command::new("ld").args(flags).arg(&rom).arg(&object));
        fs::read(rom).unwrap()
    })
}

/// A running QEMU.
pub(super) struct SoakVm {
    pub(super) child: Child,
    pub(super) qmp: PathBuf,
    pub(super) monitor: Monitor,
    /// What the firmware says.
    said: PathBuf,
    /// Files that it must not touch, and their content.
    others: Vec<(PathBuf, Vec<u8>)>,
}

impl Drop for SoakVm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Noise of this length.
fn noise(mib: u64, seed: u64) -> Vec<u8> {
    image((mib * MIB / 4096) as usize, seed)
}

impl SoakVm {
    /// Starts one, stopped, or waiting for a state. Its files are called `NAME.*`.
    pub(super) fn start(
        composition: &Composition,
        folder: &Path,
        name_of: &str,
        incoming: bool,
    ) -> SoakVm {
        let path = |what: &str| folder.join(format!("{name_of}.{what}"));
        let (qmp, other, said) = (path("qmp"), path("other"), path("said"));
        let firmware = path("rom");
        fs::write(&firmware, composition.firmware()).unwrap();
        let mut others = Vec::new();
        let nodes: Vec<&SoakBlock> =
            composition.of_place(|place| place == DimmPlace::Node).collect();
        let mut command = Command::new("qemu-system-x86_64");
        let mut machine = format!("{},accel=tcg", composition.machine);
        if let [only] = nodes[..] {
            machine += &format!(",memory-backend={}", only.id);
        } else {
            for node in &nodes {
                command.args(["-numa", &format!("node,memdev={}", node.id)]);
            }
        }
        let memory = format!("{}M,slots=4,maxmem=4G", composition.nodes_mib());
        command.args([
            "-name",
            "vm,debug-threads=on",
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            &machine,
            "-m",
            &memory,
        ]);
        command.args(["-smp", composition.processors, "-bios", name(&firmware)]);
        command.args(["-debugcon", &format!("file:{}", said.display())]);
        for block in &composition.blocks {
            let (kind, path) = (block.kind, path(&block.id));
            let share = matches!(
                kind,
                BackendKind::Nameless
                    | BackendKind::Named
                    | BackendKind::At
                    | BackendKind::Memfd { share: true }
                    | BackendKind::Ram { share: true }
            );
            let backend = match kind {
                BackendKind::Nameless => "file,mem-path=/dev/shm".to_owned(),
                BackendKind::Named => format!("file,mem-path={}", path.display()),
                BackendKind::At => {
                    // Around the memory there is something else.
                    fs::write(&path, noise(block.mib + 2 * (OFFSET / MIB), 9)).unwrap();
                    format!("file,mem-path={},offset={OFFSET}", path.display())
                }
                BackendKind::Memfd { .. } => "memfd".to_owned(),
                BackendKind::Ram { .. } => "ram".to_owned(),
            };
            let share = if share { "on" } else { "off" };
            let SoakBlock { id, mib, .. } = block;
            command.arg("-object");
            command.arg(format!("memory-backend-{backend},id={id},size={mib}M,share={share}"));
        }
        // Slots are given in order: those that were hotplugged came last.
        let is_hotplugged = |block: &SoakBlock| block.place == DimmPlace::Dimm { hotplugged: true };
        let mut dimms: Vec<_> = composition.dimms().collect();
        dimms.sort_by_key(|(block, _)| is_hotplugged(block));
        for (block, address) in dimms {
            // A DIMM that was hotplugged is there from the beginning when its memory comes back.
            if incoming || block.place == (DimmPlace::Dimm { hotplugged: false }) {
                let id = &block.id;
                command.arg("-device");
                command.arg(format!("pc-dimm,memdev={id},id=dimm-{id},addr={address:#x}"));
            }
        }
        for (number, removed) in composition.disks.iter().enumerate() {
            let disk = path(&format!("disk{number}"));
            let content = noise(composition.nodes_mib(), 3 + number as u64);
            fs::write(&disk, &content).unwrap();
            // QEMU opens a writable disk again, by its name, when the VM is saved.
            let access = if *removed { "on" } else { "off" };
            let drive = format!(
                "if=none,id=disk{number},format=raw,readonly={access},file={}",
                disk.display()
            );
            let device = format!("virtio-blk-pci,drive=disk{number},id=blk{number}");
            command.args(["-drive", &drive, "-device", &device]);
            others.push((disk, content));
        }
        command.args(if incoming { &["-incoming", "defer"][..] } else { &["-S"] });
        for socket in [&qmp, &other] {
            command.args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())]);
        }
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        wait(|| {
            assert!(child.try_wait().unwrap().is_none(), "QEMU does not start: {command:?}");
            listens(&qmp) && listens(&other)
        });
        let monitor = Monitor::connect(&other).unwrap();
        let mut vm = SoakVm { child, qmp, monitor, said, others };
        // QEMU listens before it has memory, and answers when it has.
        vm.monitor.status();
        vm.mislead(composition, &path);
        vm
    }

    /// Makes other files of what its memory and its disks were called.
    fn mislead(&mut self, composition: &Composition, path: &dyn Fn(&str) -> PathBuf) {
        let named = composition.blocks.iter().filter(|block| block.kind == BackendKind::Named);
        for (number, block) in named.enumerate() {
            let (old, new) = (path(&block.id), path(&format!("{}.new", block.id)));
            let content = noise(block.mib, 77);
            fs::write(&new, &content).unwrap();
            fs::remove_file(&old).unwrap();
            if (composition.seed + number as u64).is_multiple_of(2) {
                symlink(&new, &old).unwrap();
                self.others.push((new, content));
            } else {
                fs::rename(&new, &old).unwrap();
                self.others.push((old, content));
            }
        }
        for (number, removed) in composition.disks.iter().enumerate() {
            if *removed {
                let disk = path(&format!("disk{number}"));
                fs::remove_file(&disk).unwrap();
                self.others.retain(|(other, _)| *other != disk);
            }
        }
    }

    /// Plugs in what is hotplugged, and runs the firmware until it has filled all memory.
    pub(super) fn fill(&mut self, composition: &Composition) {
        for (block, address) in composition.dimms() {
            if block.place == (DimmPlace::Dimm { hotplugged: true }) {
                let id = &block.id;
                let dimm = json!({ "driver": "pc-dimm", "memdev": id, "id": format!("dimm-{id}"), "addr": address });
                self.monitor.run("device_add", dimm);
            }
        }
        self.monitor.run("cont", json!({}));
        wait(|| fs::read(&self.said).is_ok_and(|said| said == b"F"));
    }

    /// Its memory, as QEMU reads it.
    fn memory(&mut self, composition: &Composition, folder: &Path) -> Vec<Vec<u8>> {
        let file = folder.join("pmemsave");
        let mut read = |(address, bytes): (u64, u64)| {
            let arguments = json!({ "val": address, "size": bytes, "filename": name(&file) });
            self.monitor.run("pmemsave", arguments);
            fs::read(&file).unwrap()
        };
        composition.ranges().into_iter().map(&mut read).collect()
    }

    /// The other files are as they were, and so is what is around a block that does not begin with its file.
    fn check_others(&self, composition: &Composition, folder: &Path, name_of: &str) {
        for (path, content) in &self.others {
            assert!(fs::read(path).unwrap() == *content, "{} was written", path.display());
        }
        for block in composition.blocks.iter().filter(|block| block.kind == BackendKind::At) {
            let file = File::open(folder.join(format!("{name_of}.{}", block.id))).unwrap();
            let content = noise(block.mib + 2 * (OFFSET / MIB), 9);
            for at in [0, OFFSET + block.mib * MIB] {
                let mut found = vec![0; OFFSET as usize];
                file.read_exact_at(&mut found, at).unwrap();
                assert!(found == content[at as usize..][..OFFSET as usize], "written at {at:#x}");
            }
        }
    }
}

fn wait(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "nothing goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn vmtax(args: &[&str]) {
    let output = mem(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "vmtax mem {args:?}: {:?} {said}", output.status);
}

/// Saves a VM as its composition says, and restores it as each save left it that left it stopped. How many did.
fn save_and_restore(composition: &Composition) -> usize {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let folder = dir.path();
    let checkpoint = |number: usize| folder.join(format!("{number}.ckpt"));
    let mut vm = SoakVm::start(composition, folder, "saved", false);
    vm.fill(composition);
    let mut restored = 0;
    for (number, flags) in composition.saves.iter().enumerate() {
        let (output, parent) = (checkpoint(number), checkpoint(number.saturating_sub(1)));
        let mut args = vec!["save", "--qmp", name(&vm.qmp), "-o", name(&output)];
        args.extend(flags.iter().filter(|flag| **flag != "--parent"));
        if flags.contains(&"--parent") && number > 0 {
            args.extend(["--parent", name(&parent)]);
        }
        vmtax(&args);
        if flags.contains(&STOPPED) {
            let memory = vm.memory(composition, folder);
            vm.check_others(composition, folder, "saved");
            restore(composition, &output, &memory);
            restored += 1;
            vm.monitor.run("cont", json!({}));
        }
    }
    restored
}

/// Restores a checkpoint in a new VM, whose memory is that of the saved one.
fn restore(composition: &Composition, checkpoint: &Path, memory: &[Vec<u8>]) {
    // The firmware of this seed has written: most of it is not zero.
    let count = |of: &[Vec<u8>]| of.iter().flatten().filter(|byte| **byte != 0).count();
    assert!(count(memory) * 2 > memory.iter().map(Vec::len).sum::<usize>());

    let dir = tempfile::tempdir_in(checkpoint.parent().unwrap()).unwrap();
    let folder = dir.path();
    let mut vm = SoakVm::start(composition, folder, "restored", true);
    vmtax(&["restore", name(checkpoint), "--qmp", name(&vm.qmp), STOPPED]);
    let restored = vm.memory(composition, folder);
    for ((range, saved), restored) in composition.ranges().iter().zip(memory).zip(&restored) {
        let pages = saved.chunks(4096).zip(restored.chunks(4096));
        let differing = pages.filter(|(saved, restored)| saved != restored).count();
        assert_eq!(differing, 0, "pages of {range:x?} are not what they were");
    }
    vm.check_others(composition, folder, "restored");
    // It goes on writing.
    vm.monitor.run("cont", json!({}));
}

/// Restores VMs of all seeds from `first` on until `wanted` checkpoints were restored, several at once.
#[expect(clippy::print_stdout, reason = "what is needed to repeat a failure, and what was done")]
fn soak(first: u64, wanted: usize, jobs: usize) {
    let started = Instant::now();
    let (next, vms, saves, restored, failed) = (
        AtomicU64::new(first),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    let work = || {
        while restored.load(Relaxed) < wanted && !failed.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            let composition = Composition::new(seed);
            let Ok(done) = std::panic::catch_unwind(|| save_and_restore(&composition)) else {
                failed.store(true, Relaxed);
                println!("seed {seed}: {composition:#?}");
                return;
            };
            saves.fetch_add(composition.saves.len(), Relaxed);
            let all = restored.fetch_add(done, Relaxed) + done;
            if (vms.fetch_add(1, Relaxed) + 1).is_multiple_of(100) {
                println!("{all} checkpoints restored in {:?}", started.elapsed());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let number = |of: AtomicUsize| of.into_inner();
    println!(
        "{} VMs from seed {first} on, {} saves in {:?}: {} were restored, all bit by bit as they were",
        number(vms),
        number(saves),
        started.elapsed(),
        number(restored)
    );
    assert!(!failed.into_inner(), "a VM was not restored as it was");
}

#[test]
fn vms_of_all_sorts_are_restored_bit_by_bit() {
    soak(1, 8, 1);
}

/// `./x soak checkpoints [N]`; with VMTAX_SOAK_SEED of other seeds.
#[test]
#[ignore = "long: ./x soak checkpoints"]
fn many_vms_of_all_sorts_are_restored_bit_by_bit() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = number("VMTAX_SOAK").unwrap_or(100) as usize;
    soak(number("VMTAX_SOAK_SEED").unwrap_or(1000), wanted, jobs);
}

/// Files that are not the memory, though their name or their length is its.
#[test]
fn memory_is_found_by_its_mapping() {
    let private = BackendKind::Memfd { share: false };
    let shared =
        if version() < NEWER { BackendKind::Memfd { share: true } } else { BackendKind::Nameless };
    let (node, spare) = (DimmPlace::Node, DimmPlace::Spare);
    let mut all = vec![
        // Files of equal length: of another node, and of backends that nothing uses.
        Composition::of(&[(shared, node), (private, node), (private, spare)]),
        Composition::of(&[(private, node), (shared, node), (shared, spare)]),
        Composition::of(&[(shared, DimmPlace::Dimm { hotplugged: true }), (private, node)]),
        // A path that was made anew: a file of seed 1, and a symbolic link of seed 2.
        Composition::of(&[(BackendKind::Named, node)]),
        Composition { seed: 2, ..Composition::of(&[(BackendKind::Named, node)]) },
        // A disk of the same length without a name.
        Composition { disks: vec![true], ..Composition::of(&[(shared, node)]) },
    ];
    if version() >= NEWER {
        all.push(Composition::of(&[(BackendKind::At, node)]));
    }
    for composition in &all {
        assert_eq!(save_and_restore(composition), 1);
    }
}

/// QEMU from 8.1 on would put a memfd into the state of the devices: each increment would hold all memory.
#[test]
fn memory_that_qemu_does_not_skip_is_refused() {
    let composition = Composition::of(&[(BackendKind::Memfd { share: true }, DimmPlace::Node)]);
    if version() < NEWER {
        return vmtax_skipped::system("QEMU before 8.1 skips all shared memory");
    }
    let dir = tempfile::tempdir().unwrap();
    let vm = SoakVm::start(&composition, dir.path(), "vm", false);
    let output = dir.path().join("x.ckpt");
    let (code, said) = refused(&["save", "--qmp", name(&vm.qmp), "-o", name(&output)]);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("is a memory-backend-memfd, and QEMU ") && said.contains("mem-path=/dev/shm"),
        "{said}"
    );
    assert!(!output.exists());
}
