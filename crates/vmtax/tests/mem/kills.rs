//! kill -9 at any moment of saving and restoring: what is found afterwards is the old or the new, whole.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vmtax_pageops::checkpoint::{Checkpoint, Target};

use super::{image, name, ok};

struct Memory(Vec<u8>);

impl Target for Memory {
    fn clear(&mut self, _: usize, bytes: u64) -> io::Result<()> {
        self.0 = vec![0; bytes as usize];
        Ok(())
    }
    fn write(&mut self, _: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// The memory in a checkpoint; it must verify.
fn content(path: &Path) -> Vec<u8> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("after a kill: {e}"));
    let mut memory = Memory(Vec::new());
    checkpoint.restore(&mut memory, &mut |_| {}).unwrap_or_else(|e| panic!("after a kill: {e}"));
    memory.0
}

/// Moments at random, other ones every time; the seed is printed.
struct Moments(u64);

impl Moments {
    #[expect(clippy::print_stdout, reason = "what is needed to repeat a failure")]
    fn new() -> Moments {
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
                as u64;
        println!("seed {seed}");
        Moments(seed | 1)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % limit.as_nanos().max(1) as u64)
    }
}

/// Starts the command and kills it after a time. True if it had ended by itself.
fn killed_after(args: &[&str], time: Duration) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    let mut child =
        command.arg("mem").args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap().success()
}

/// How long it takes when nobody disturbs it.
fn duration(args: &[&str]) -> Duration {
    let mut times: Vec<Duration> = (0..3)
        .map(|_| {
            let start = Instant::now();
            ok(args);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[1]
}

const PAGES: usize = 6144;

#[test]
fn a_killed_save_leaves_the_old_checkpoint_or_the_new_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let states = [image(PAGES, 1), image(PAGES, 2)];
    let mut close = states[0].clone();
    close.iter_mut().step_by(9000).for_each(|b| *b ^= 1);
    fs::write(path("0.img"), &states[0]).unwrap();
    fs::write(path("1.img"), &states[1]).unwrap();
    fs::write(path("2.img"), &close).unwrap();
    let (base, target) = (path("base.ckpt"), path("x.ckpt"));
    ok(&["save", "--image", name(&path("0.img")), "-o", name(&base)]);
    ok(&["save", "--image", name(&path("0.img")), "-o", name(&target)]);
    let images = [path("0.img"), path("1.img"), path("2.img")];
    let ways: Vec<Vec<&str>> = (0..3)
        .map(|i| {
            let mut args = vec!["save", "--image", name(&images[i]), "-o", name(&target)];
            match i {
                1 => args.push("--zstd"),
                2 => args.extend(["--parent", name(&base)]),
                _ => {}
            }
            args
        })
        .collect();
    let whole: Vec<Duration> = ways.iter().map(|args| duration(args)).collect();
    let contents = [&states[0], &states[1], &close];
    ok(&ways[0].clone());
    let mut held = 0;
    let mut moments = Moments::new();
    let (mut cut, mut ended) = (0, 0);
    for round in 0..110 {
        let way = round % 3;
        let moment = moments.below(whole[way].mul_f64(1.3));
        if killed_after(&ways[way], moment) {
            ended += 1
        } else {
            cut += 1
        }
        let found = content(&target);
        let now = contents.iter().position(|c| **c == found);
        assert!(
            now == Some(held) || now == Some(way),
            "round {round}: a checkpoint that verifies and is wrong"
        );
        held = now.unwrap();
    }
    assert!(cut >= 20 && ended >= 5, "{cut} cut, {ended} ended by themselves");
    // No half file under any name: at most the one moment between two names.
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap().path();
        let known = [&images[0], &images[1], &images[2], &base, &target];
        if !known.contains(&&entry) {
            assert_eq!(entry.file_name().unwrap(), ".x.ckpt.part");
            content(&entry);
        }
    }
    ok(&ways[0].clone());
    assert!(!path(".x.ckpt.part").exists());
}

#[test]
fn a_killed_restore_leaves_the_old_image_or_the_new_one() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |file: &str| dir.path().join(file);
    let states = [image(PAGES, 3), image(PAGES, 4)];
    let checkpoints = [path("0.ckpt"), path("1.ckpt")];
    for (state, checkpoint) in states.iter().zip(&checkpoints) {
        fs::write(path("now.img"), state).unwrap();
        ok(&["save", "--image", name(&path("now.img")), "-o", name(checkpoint)]);
    }
    let target = path("now.img");
    let ways: Vec<Vec<&str>> =
        checkpoints.iter().map(|c| vec!["restore", name(c), "--image", name(&target)]).collect();
    let whole = duration(&ways[1]);
    let mut held = 1;
    let mut moments = Moments::new();
    let (mut cut, mut ended) = (0, 0);
    for round in 0..100 {
        let way = round % 2;
        if killed_after(&ways[way], moments.below(whole.mul_f64(1.3))) {
            ended += 1
        } else {
            cut += 1
        }
        let found = fs::read(&target).unwrap();
        let now = states.iter().position(|s| *s == found);
        assert!(
            now == Some(held) || now == Some(way),
            "round {round}: an image that is neither the old nor the new"
        );
        held = now.unwrap();
    }
    assert!(cut >= 20 && ended >= 5, "{cut} cut, {ended} ended by themselves");
}
