//! The screen of `vmtax top`, painted into cells: the running kernel, hostile names, any keys.

use std::collections::BTreeSet;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use vmtax_analyse::{Frames, IntervalFrame, KeepFrames};
use vmtax_events::{
    Coverage, Detail, DetailKind, ExitKey, ExitRow, Isa, Losses, Outcome, PreemptedRow, Reason,
    Recording, Tally, TimeRow, Vm,
};
use vmtax_report::tui::{FrameSource, HostFacts, Key, ScreenModel, Wish, draw};

const SECOND: u64 = 1_000_000_000;

/// What is on a screen of this size: lines without blanks at their ends, and whether a colour was used.
fn paint(
    model: &mut ScreenModel,
    (width, height): (u16, u16),
    has_colors: bool,
) -> (Vec<String>, bool) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    model.resize(width, height);
    terminal.draw(|frame| draw(model, frame.area(), frame.buffer_mut(), has_colors)).unwrap();
    let buffer = terminal.backend().buffer();
    let is_colored =
        buffer.content().iter().any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
    let lines = buffer.content().chunks(usize::from(width).max(1)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    });
    (lines.collect(), is_colored)
}

fn screen(model: &mut ScreenModel) -> Vec<String> {
    paint(model, (80, 24), false).0
}

fn key(vm: u32, vcpu: u32, code: u32, outcome: Outcome) -> ExitKey {
    ExitKey { vcpu, outcome, ..ExitKey::of(vm, Reason { isa: Isa::Svm, code, flags: 0 }) }
}

/// So many exits of 1 µs, and a second of which the vCPU is so many ms in the kernel and halted.
fn busy(
    frame: &mut IntervalFrame,
    vm: u32,
    vcpu: u32,
    (exits, kernel_ms, halted_ms): (u64, u64, u64),
) {
    let mut tally = Tally::default();
    (0..exits).for_each(|_| tally.add(1000));
    frame.exit(key(vm, vcpu, 0x72, Outcome::Kernel), &tally);
    let mut halts = Tally::default();
    halts.add(halted_ms * 1_000_000);
    frame.exit(key(vm, vcpu, 0x78, Outcome::Halted), &halts);
    frame.time(&TimeRow {
        vm,
        vcpu,
        wall_ns: SECOND,
        guest_ns: SECOND - (kernel_ms + halted_ms) * 1_000_000,
        exit_kernel_ns: kernel_ms * 1_000_000,
        halted_ns: halted_ms * 1_000_000,
        ..TimeRow::default()
    });
}

fn facts(vms: &[(u32, &str)]) -> HostFacts {
    let vm = |(id, name): &(u32, &str)| Vm {
        id: *id,
        name: (*name).to_owned(),
        inferred: false,
        ..Vm::default()
    };
    HostFacts {
        recording: Recording {
            hostname: "host1".to_owned(),
            kernel: "6.1.0".to_owned(),
            coverage: Coverage {
                exits: true,
                nested: true,
                userspace: true,
                sched: true,
                ..Coverage::default()
            },
            vms: vms.iter().map(vm).collect(),
            ..Recording::default()
        },
        ..HostFacts::default()
    }
}

fn live() -> ScreenModel {
    ScreenModel::new(
        FrameSource::Live(Duration::from_secs(1)),
        facts(&[]),
        Frames::new(KeepFrames::Newest, 1),
    )
}

fn frame(number: u64) -> IntervalFrame {
    IntervalFrame { start_ns: number * SECOND, length_ns: SECOND, ..IntervalFrame::default() }
}

#[test]
fn a_running_kernel_from_no_vm_to_no_vm() {
    let mut model = live();
    assert_eq!(screen(&mut model)[7], " No VM runs; waiting.");
    model.push(frame(1), facts(&[]), &BTreeSet::new());
    assert_eq!(screen(&mut model)[7], " No VM runs; waiting.");
    // Two VMs; the one with more tax is first.
    let both = [(10, "web1"), (20, "db")];
    let mut second = frame(2);
    busy(&mut second, 10, 0, (1234, 50, 500));
    busy(&mut second, 20, 0, (40, 200, 0));
    busy(&mut second, 20, 1, (40, 100, 0));
    model.push(second, facts(&both), &BTreeSet::new());
    let lines = screen(&mut model);
    assert_eq!(
        lines[..8],
        [
            " vmtax top  host1  6.1.0                                     live, every 1.00 s",
            " tax [|||                     ] 14.0 %          1,317 exits/s   2 VMs   3 vCPUs",
            " guest 71.7 %   kernel 11.7 %   user 0.0 %   halted 16.7 %   preempted 0.0 %",
            " No known losses.",
            " VMs  vCPUs  causes  exits                                                 host",
            "     ID  TAX%▼   EXITS/s    MEAN GUEST% KERN% USER% HALT% PREE% VMs",
            "     20  15.0         82  976 ns   85.0  15.0   0.0   0.0   0.0 db",
            "     10  10.0      1,235  406 µs   45.0   5.0   0.0  50.0   0.0 web1",
        ]
    );
    // One is idle, then its process is gone: it is shown for three intervals more.
    for number in 3..5 {
        let mut next = frame(number);
        busy(&mut next, 10, 0, (10, 10, 0));
        model.push(next, facts(&both), &BTreeSet::new());
    }
    assert_eq!(
        screen(&mut model)[7],
        "     20     -          0       -      -     -     -     -     - db"
    );
    let shown: Vec<bool> = (5..10)
        .map(|number| {
            model.push(frame(number), facts(&both), &BTreeSet::from([20]));
            screen(&mut model).iter().any(|line| line.ends_with("ended db"))
        })
        .collect();
    assert_eq!(shown, [true, false, false, false, false]);
    // All since the start still has it; the past too, with its name, when it is long forgotten.
    model.key(Key::Char('a'));
    assert!(screen(&mut model)[6].ends_with("ended db"), "{:#?}", screen(&mut model));
    model.push(frame(10), facts(&[(10, "web1")]), &BTreeSet::new());
    assert!(!screen(&mut model).iter().any(|line| line.contains("db")));
    model.key(Key::Char('a'));
    for _ in 0..8 {
        model.key(Key::Left);
    }
    let lines = screen(&mut model);
    assert!(lines[0].ends_with("paused at 2 of 10, 1.0-2.0 s"), "{}", lines[0]);
    assert_eq!(lines[6], "     20  15.0         82  976 ns   85.0  15.0   0.0   0.0   0.0 db");
    // What comes meanwhile does not move it.
    model.push(frame(11), facts(&[]), &BTreeSet::new());
    assert_eq!(screen(&mut model)[6..], lines[6..]);
    model.key(Key::Char(' '));
    assert_eq!(screen(&mut model)[7], " No VM runs; waiting.");
}

/// Who had the processors of the chosen VM, or of one vCPU of it.
#[test]
fn a_preempted_vm_shows_who_had_its_processors() {
    let mut model = live();
    let mut first = frame(1);
    let take = |vcpu: u32, by: &str, by_vcpu: Option<(u32, u32)>, ms: u64| PreemptedRow {
        interval_start_ns: SECOND,
        key: key(100, vcpu, 0x60, Outcome::Kernel),
        by: by.into(),
        by_vcpu,
        count: 1,
        time_ns: ms * 1_000_000,
    };
    for vcpu in 0..2 {
        busy(&mut first, 100, vcpu, (10, 10, 0));
    }
    first.preempted(&take(0, "thread 103", Some((100, 1)), 60));
    first.preempted(&take(1, "evil\u{1b}[2J", None, 30));
    first.preempted(&take(1, "CPU 0/KVM", Some((200, 0)), 10));
    model.push(first, facts(&[(100, "web"), (200, "db")]), &BTreeSet::new());
    let line = |model: &mut ScreenModel| {
        let found = screen(model).into_iter().find(|line| line.contains("preempted by"));
        found.unwrap_or_default()
    };
    let all = line(&mut model);
    assert!(all.contains("preempted by vCPU 1 of the same VM 60.0 %, "), "{all}");
    assert!(!all.contains('\u{1b}'), "{all}");
    // The second vCPU.
    model.key(Key::Char('2'));
    model.key(Key::End);
    let second = line(&mut model);
    assert!(second.contains("75.0 %, vCPU 0 of"), "{second}");
}

#[test]
fn rows_are_chosen_by_what_they_are_and_not_by_where() {
    let mut model = live();
    let both = [(10, "web1"), (20, "db")];
    for number in 1..3 {
        let mut next = frame(number);
        busy(&mut next, 10, 0, (10, 100 * number, 0));
        busy(&mut next, 20, 0, (10, 150, 0));
        model.push(next, facts(&both), &BTreeSet::new());
        if number == 1 {
            assert!(screen(&mut model)[7].ends_with("web1"));
            model.key(Key::Down);
        }
    }
    // web1 is first now, and it is still the one that is entered.
    assert!(screen(&mut model)[6].ends_with("web1"));
    model.key(Key::Enter);
    let lines = screen(&mut model);
    assert!(lines[4].ends_with("host > web1 (10)"), "{}", lines[4]);
    assert_eq!(lines[6], "     10  20.0         11  909 ns   80.0  20.0   0.0   0.0   0.0 vCPU 0");
    model.key(Key::Enter);
    let lines = screen(&mut model);
    assert_eq!(
        lines[6],
        " <0.1         10 1.00 µs 1.00 µs 1.00 µs cpuid            executing CPUID"
    );
    // A halt costs no tax, and what it cost beside is not known.
    assert_eq!(lines[7], "    -        1.0    0 ns    0 ns    0 ns idle             going idle");
    model.key(Key::Enter);
    assert_eq!(screen(&mut model)[6], " <0.1         10 1.00 µs 1.00 µs 1.00 µs cpuid");
    assert_eq!(model.key(Key::Enter), Wish::GoOn);
    for _ in 0..5 {
        model.key(Key::Backspace);
    }
    assert!(screen(&mut model)[4].ends_with("  host"));
}

#[test]
fn a_dump_of_counts_has_counts_and_no_rates() {
    let mut frames = Frames::new(KeepFrames::All, SECOND);
    let mut tally = Tally::default();
    tally.add_untimed(1_234_567_890);
    frames.exit(&ExitRow { interval_start_ns: 0, key: key(1, 0, 0x72, Outcome::Unknown), tally });
    let mut model = ScreenModel::new(FrameSource::Replay, facts(&[(1, "dump")]), frames);
    for keys in [&[][..], &[Key::Right]] {
        for key in keys {
            model.key(*key);
        }
        let lines = screen(&mut model);
        assert!(lines[1].starts_with(" tax [                        ] unknown"), "{}", lines[1]);
        assert_eq!(
            lines[6],
            "      1     -    1.235e9       -      -     -     -     -     - dump"
        );
    }
}

#[test]
fn names_cannot_control_the_screen() {
    let evil = "\u{1b}[31mred\u{1b}]0;title\u{7}\nsecond line \u{202e}reversed 虚拟机虚拟机虚拟机虚拟机虚拟机虚拟机";
    let mut facts = facts(&[(1, evil)]);
    facts.recording.hostname = evil.repeat(9);
    facts.recording.kernel = evil.to_owned();
    facts.recording.emulated = Some(evil.to_owned());
    let mut model = live();
    let mut first = frame(1);
    busy(&mut first, 1, 0, (1, 1, 1));
    model.push(first, facts, &BTreeSet::new());
    for (width, height) in [(80, 24), (81, 24), (200, 50)] {
        for keys in
            [Key::Enter, Key::Char('/'), Key::Char('虚'), Key::Enter, Key::Escape, Key::Escape]
        {
            model.key(keys);
            let (lines, _) = paint(&mut model, (width, height), true);
            let text = lines.concat();
            assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text}");
            // The time is there whatever the host is called.
            assert!(lines[0].ends_with("live, every 1.00 s"), "{}", lines[0]);
        }
    }
}

#[test]
fn losses_are_reported() {
    let mut model = live();
    let mut known = facts(&[]);
    known.losses =
        vec!["12 events were lost by the recorder.".to_owned(), "xyz ".repeat(50), "y".to_owned()];
    known.is_lossy = true;
    model.push(frame(1), known, &BTreeSet::new());
    let (lines, is_colored) = paint(&mut model, (80, 24), true);
    assert!(lines[3].starts_with(" 12 events were lost by the recorder. "), "{}", lines[3]);
    assert!(lines[3].ends_with(" l: all 3") && is_colored);
    assert!(!paint(&mut model, (80, 24), false).1);
    model.key(Key::Char('l'));
    let lines = screen(&mut model);
    assert_eq!(lines[5], " Losses: any key returns");
    assert_eq!(lines[6], " 12 events were lost by the recorder.");
    assert_eq!(lines[7..].concat().matches("xyz").count(), 50);
    assert!(lines[7..10].iter().all(|line| line.len() <= 79), "{lines:#?}");
    assert_eq!(lines[10], " y");
    // A single sentence that is too long says so.
    model.key(Key::Enter);
    let mut known = facts(&[]);
    known.losses = vec!["xyz ".repeat(50)];
    model.push(frame(2), known, &BTreeSet::new());
    assert!(screen(&mut model)[3].ends_with("…  l: full text"), "{}", screen(&mut model)[3]);
}

#[test]
fn exits_at_the_end_are_no_warning() {
    let ends = Losses { unpaired_exits: 2, ..Losses::default() };
    let lost = Losses { recorder_lost: 1, ..ends.clone() };
    let facts = |losses, complete| HostFacts::new(Recording::default(), losses, complete).is_lossy;
    assert!(!facts(&ends, true) && facts(&ends, false) && facts(&lost, true));
}

/// Pseudo-random numbers: the same for the same seed.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn any_keys_frames_and_sizes_do_no_harm() {
    let keys = [
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Enter,
        Key::Enter,
        Key::Escape,
        Key::Backspace,
        Key::Tab,
        Key::BackTab,
        Key::F(1),
        Key::F(4),
        Key::F(6),
        Key::Ctrl('u'),
        Key::Ctrl('l'),
        Key::Char(' '),
        Key::Char('/'),
        Key::Char('s'),
        Key::Char('<'),
        Key::Char('r'),
        Key::Char('a'),
        Key::Char('+'),
        Key::Char('-'),
        Key::Char('1'),
        Key::Char('4'),
        Key::Char('h'),
        Key::Char('l'),
        Key::Char('w'),
        Key::Char('é'),
    ];
    for seed in 0..20 {
        let mut numbers = PseudoRandom(seed);
        let mut model = live();
        if seed % 2 == 1 {
            let mut frames = Frames::new(KeepFrames::All, 10);
            for _ in 0..200 {
                let start = numbers.below(100) * 10;
                let (vm, vcpu) = (numbers.below(3) as u32, numbers.below(3) as u32);
                let mut tally = Tally::default();
                tally.add(numbers.below(u64::MAX >> 33) << numbers.below(30));
                let detail = Detail::new(DetailKind::MsrWrite, numbers.below(1 << 20));
                let key =
                    ExitKey { detail, ..key(vm, vcpu, numbers.below(0x90) as u32, Outcome::User) };
                frames.exit(&ExitRow { interval_start_ns: start, key, tally });
            }
            model = ScreenModel::new(FrameSource::Replay, facts(&[(0, "a"), (1, "b")]), frames);
        }
        let mut size = (80, 24);
        for step in 0..300 {
            model.key(keys[numbers.below(keys.len() as u64) as usize]);
            if seed % 2 == 0 && numbers.below(4) == 0 {
                let mut next = frame(step);
                let vm = numbers.below(4) as u32;
                busy(
                    &mut next,
                    vm,
                    numbers.below(3) as u32,
                    (numbers.below(9), numbers.below(500), 500),
                );
                let vms = [(0, "a"), (1, "b"), (2, "c"), (3, "")];
                let known = &vms[..numbers.below(5) as usize];
                model.push(next, facts(known), &BTreeSet::from([numbers.below(4) as u32]));
            }
            if model.tick_after().is_some() {
                model.tick();
            }
            if numbers.below(10) == 0 {
                size = (1 + numbers.below(220) as u16, 1 + numbers.below(70) as u16);
            }
            paint(&mut model, size, seed % 3 == 0);
        }
    }
}

/// What has no column is named above the figures.
#[test]
fn omitted_columns_are_named() {
    let mut model = live();
    let mut one = frame(1);
    busy(&mut one, 10, 0, (10, 50, 500));
    model.push(one, facts(&[(10, "web1")]), &BTreeSet::new());
    // L2%, and parts of versions since then.
    let within = TimeRow::PARTS.iter().filter(|part| part.within.is_some());
    let within: Vec<String> = within
        .map(|part| part.name.chars().take(4).collect::<String>().to_uppercase() + "%")
        .collect();
    for (width, expected) in [
        (80, " not shown in 80 columns: P99, MAX, L2%, UNKN%, VCPUS"),
        (100, " not shown in 100 columns: P99, MAX, L2%, UNKN%"),
        (120, " not shown in 120 columns: L2%, UNKN%"),
        (132, ""),
    ] {
        let later = within[1..].iter().map(|name| format!(", {name}")).collect::<String>();
        let expected = expected.replace("UNKN%", &format!("UNKN%{later}"));
        let lines = paint(&mut model, (width, 24), false).0;
        let said: Vec<&String> = lines.iter().filter(|line| line.contains("not shown")).collect();
        assert_eq!(said.first().map_or("", |line| line.as_str()), expected);
    }
}
