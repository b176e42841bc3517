//! `vmtax top` in a terminal, tmux: what the screen shows, cell by cell, and what is left of it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::captures::unpack;
use crate::check::{Program, check};
use crate::terminal::Terminal;

/// ftrace's text: web1 runs CPUID of 50 µs every 500 µs for a second, db has page faults of 200 µs every millisecond
/// until it is gone after half of it.
fn recording() -> String {
    let mut events: Vec<(u64, String)> = Vec::new();
    let mut exit = |from: u64, us: u64, who: &str, cpu: u32, what: &str| {
        let head =
            |us: u64| format!("{who} [{cpu:03}] d.... {}.{:06}: ", us / 1_000_000, us % 1_000_000);
        let exit = format!(
            "kvm_exit: vcpu 0 reason {what} rip 0xfff0 info1 0x0000000000000000 info2 0x0000000000000000 \
             intr_info 0x00000000 error_code 0x00000000"
        );
        events.push((from, head(from) + &exit));
        events.push((from + us, head(from + us) + "kvm_entry: vcpu 0, rip 0xfff2"));
    };
    (0..2000).for_each(|n| exit(n * 500 + 100, 50, "web1-100", 0, "cpuid"));
    (0..500).for_each(|n| exit(n * 1000 + 101, 200, "db-200", 1, "npf"));
    events.sort();
    let mut text = "# tracer: nop\n#\n".to_owned();
    events.iter().for_each(|(_, line)| text.push_str(&format!("  {line}\n")));
    text
}

/// A recording, and `vmtax top --replay` of it in a terminal; afterwards its exit code and how the terminal is.
fn start(size: (u16, u16), folder: &Path) -> Terminal {
    std::fs::write(folder.join("trace"), recording()).unwrap();
    let program = env!("CARGO_BIN_EXE_vmtax");
    let line = format!(
        "{program} top --replay trace; echo ended $?; stty -a | grep -o '.icanon'; exec sleep 1000"
    );
    let terminal = Terminal::start(size, &line, folder);
    if size.0 >= 80 && size.1 >= 24 {
        terminal.wait_for("Quit");
    }
    terminal
}

fn is_given_back(terminal: &Terminal, code: i32) {
    let screen = terminal.wait_for("icanon");
    assert!(screen.contains(&format!("ended {code}\n icanon")), "{screen}");
    terminal.says("#{alternate_on} #{cursor_flag}", "0 1");
}

#[test]
fn the_screen_is_as_it_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = start((80, 24), folder.path());
    terminal.says("#{alternate_on} #{cursor_flag}", "1 0");
    terminal.expect(include_str!("screens/all.txt"));
    terminal.press("Right Right Right");
    terminal.expect(include_str!("screens/third.txt"));
    terminal.press("Down Enter Enter Enter");
    terminal.expect(include_str!("screens/exits.txt"));
    terminal.press("Escape");
    terminal.wait_for(" executing CPUID");
    terminal.press("BSpace BSpace s s");
    terminal.wait_for("MEAN▼");
    terminal.press("r");
    terminal.wait_for("MEAN▲");
    terminal.press("h");
    terminal.expect(include_str!("screens/help.txt"));
    terminal.press("x / n o b o d y");
    terminal.wait_for("filter: nobody_");
    terminal.wait_for("No row matches \"nobody\"; Esc clears the filter.");
    terminal.press("C-u W E B Enter");
    let screen = terminal.wait_for("only \"WEB\"");
    assert!(screen.contains(" web1") && !screen.contains(" db"), "{screen}");
    terminal.press("q");
    is_given_back(&terminal, 0);
}

#[test]
fn a_vm_that_ended_is_shown_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = start((80, 24), folder.path());
    terminal.press("Right Right Right Right Right");
    let screen = terminal.wait_for("interval 5 of 10");
    assert!(screen.contains(" db\n"), "{screen}");
    terminal.press("Right");
    terminal.expect(include_str!("screens/gone.txt"));
    terminal.press("Right Right");
    assert!(terminal.wait_for("interval 8 of 10").contains("gone db"));
    terminal.press("Right");
    let screen = terminal.wait_for("interval 9 of 10");
    assert!(!screen.contains("db"), "{screen}");
    // Played from there it stops at the end.
    terminal.press("+ + Space");
    terminal.wait_for("interval 10 of 10");
    terminal.press("a");
    terminal.expect(include_str!("screens/all.txt"));
    terminal.press("C-c");
    is_given_back(&terminal, 0);
}

#[test]
fn terminals_of_all_sizes_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = start((60, 20), folder.path());
    terminal.expect("This terminal is 60x20;\nvmtax top needs 80x24.\nEnlarge it, or press q.");
    terminal.resize(20, 2);
    terminal.expect("This terminal is 20…\nvmtax top needs 80x…");
    terminal.resize(80, 24);
    terminal.expect(include_str!("screens/all.txt"));
    terminal.resize(140, 45);
    terminal.expect(include_str!("screens/large.txt"));
    terminal.resize(79, 24);
    terminal.wait_for("This terminal is 79x24;");
    terminal.resize(1, 1);
    terminal.resize(80, 24);
    terminal.expect(include_str!("screens/all.txt"));
    terminal.press("F10");
    is_given_back(&terminal, 0);
}

/// A terminal that answers no request, as a slow line may not in time.
#[test]
fn nothing_is_asked_of_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace"), recording()).unwrap();
    let line = format!(
        "stty rows 24 cols 80; echo $$ >pid; exec {} top --replay trace",
        env!("CARGO_BIN_EXE_vmtax")
    );
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-f", "-c", &line, "screen"]).current_dir(folder.path());
    script.env("SHELL", "/bin/sh").env("TERM", "xterm");
    let mut child =
        script.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let screens = || {
        let bytes = std::fs::read(folder.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).matches("Quit").count()
    };
    let mut wait = |for_screens: usize| {
        while screens() < for_screens {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} after {} of {for_screens} screens", screens());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait(1);
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::WINCH).unwrap();
    wait(2);
    child.stdin.take().unwrap().write_all(b"q").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn signals_give_the_terminal_back() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let terminal = start((80, 24), folder.path());
        kill_process(process(&terminal), signal).unwrap();
        is_given_back(&terminal, 0);
    }
}

/// The process of the program in the terminal's shell.
fn process(terminal: &Terminal) -> Pid {
    let shell = terminal.ask("#{pane_pid}");
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

#[test]
fn a_program_that_is_stopped_gives_the_terminal_back_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = start((80, 24), folder.path());
    let state = || {
        let pid = process(&terminal).as_raw_nonzero();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim().chars().next()
    };
    for _ in 0..2 {
        terminal.press("C-z");
        terminal.wait("a stopped program", |_| state() == Some('T'));
        terminal.says("#{alternate_on} #{cursor_flag}", "0 1");
        kill_process(process(&terminal), Signal::CONT).unwrap();
        terminal.expect(include_str!("screens/all.txt"));
        terminal.says("#{alternate_on} #{cursor_flag}", "1 0");
    }
    kill_process(process(&terminal), Signal::TSTP).unwrap();
    terminal.wait("a stopped program", |_| state() == Some('T'));
    terminal.says("#{alternate_on} #{cursor_flag}", "0 1");
    kill_process(process(&terminal), Signal::CONT).unwrap();
    terminal.expect(include_str!("screens/all.txt"));
    terminal.press("q");
    is_given_back(&terminal, 0);
}

#[test]
fn mistakes_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let no_terminal =
        "top needs a terminal for input and output; `vmtax report` writes into pipes and files";
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    check(
        &Program::new(),
        folder.path(),
        &[
            ("top", 2, no_terminal),
            (&format!("top --replay {}", recording.display()), 2, no_terminal),
            ("top --replay x --pid 1", 2, "*"),
            ("top --interval 0ms", 2, "*use a time above zero with its unit, such as 100ms*"),
            ("top --interval 1ms", 2, "--interval: use 10ms to 3600s"),
            ("top --emulated x", 2, "--emulated is for recordings; it needs --replay"),
        ],
    );
    // In a terminal it is one sentence too, and the terminal is as it was.
    std::fs::write(folder.path().join("garbage"), "garbage").unwrap();
    let program = env!("CARGO_BIN_EXE_vmtax");
    for (input, code, sentence) in [
        (
            "none",
            3,
            "vmtax: none: cannot be read: No such file or directory (os error 2); check its name",
        ),
        (".", 3, "vmtax: .: is a folder and not a run"),
        ("garbage", 4, "vmtax: garbage: "),
    ] {
        let line = format!(
            "{program} top --replay {input}; echo ended $?; stty -a | grep -o '.icanon'; exec sleep 1000"
        );
        let terminal = Terminal::start((120, 24), &line, folder.path());
        let screen = terminal.wait_for("icanon");
        assert!(screen.starts_with(sentence), "{screen}");
        is_given_back(&terminal, code);
    }
}
