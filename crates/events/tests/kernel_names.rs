//! The decode tables against the kernel's own words: a tracepoint's `print fmt` recorded on Debian's
//! Linux 6.1, and the headers of `linux-libc-dev` where this machine has them.
//!
//! `kvm_exit-format-6.1.txt` is the `print fmt` line of `kvm:kvm_exit` as `perf record` stored it in a
//! perf.data of the emulated AMD host (Linux 6.1), taken out with
//! `strings -n 200 amd-nested-all.perf.data | grep -m1 '^print fmt: "vcpu %u reason'`.

use std::collections::BTreeMap;

use vmtax_events::{svm, userspace, vmx};

const FORMAT: &str = include_str!("kvm_exit-format-6.1.txt");

/// What our tables name and Linux 6.1 does not print, in the ranges of architectural reasons.
const VMX_NOT_IN_6_1: &[u32] =
    &[5, 6, 11, 17, 65, 66, 69, 70, 72, 73, 76, 77, 78, 79, 80, 81, 84, 85];

/// A header's text; `None` skips the test.
#[track_caller]
fn header(path: &str) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            vmtax_skipped::package("linux-libc-dev");
            None
        }
        Err(error) => panic!("{path}: {error}"),
    }
}

/// A C integer: `0x40`, `12`, `-1`. SVM's codes are 32 bits wide, so -1 is `u32::MAX`.
fn integer(text: &str) -> Option<u32> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    Some(text.parse::<i64>().ok()? as u32)
}

/// The `{ number, "name" }` pairs of a C initialiser; `value` reads the number.
fn pairs(text: &str, value: impl Fn(&str) -> Option<u32>) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    for part in text.split('{').skip(1) {
        let Some((part, _)) = part.split_once('}') else {
            continue;
        };
        let Some((number, name)) = part.split_once(',') else {
            continue;
        };
        let sum = number.split('+').map(|term| value(term.trim())).sum::<Option<u32>>();
        let sum = sum.unwrap_or_else(|| panic!("cannot read {number:?}"));
        let name = name.trim().trim_matches('"').to_owned();
        assert_eq!(found.insert(sum, name), None, "{sum:#x} twice");
    }
    found
}

/// `#define` lines of a header.
fn defines(text: &str) -> BTreeMap<&str, u32> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("#define")
            && let (Some(name), Some(number)) = (words.next(), words.next().and_then(integer))
        {
            found.insert(name, number);
        }
    }
    found
}

/// The text between two markers.
fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from:?}"));
    rest.split_once(to).unwrap_or_else(|| panic!("no {to:?}")).0
}

/// Every pair the kernel prints is in our table and the other way round; `extra` says which of ours
/// the kernel is known not to have.
fn compare(
    kernel: &BTreeMap<u32, String>,
    all: impl Iterator<Item = u32>,
    name: fn(u32) -> Option<&'static str>,
    code: fn(&str) -> Option<u32>,
    extra: impl Fn(u32) -> bool,
) {
    for (&number, text) in kernel {
        assert_eq!(name(number), Some(text.as_str()), "{number:#x}");
        assert_eq!(code(text), Some(number), "{text}");
    }
    for number in all {
        if name(number).is_some() {
            assert_eq!(
                kernel.contains_key(&number),
                !extra(number),
                "{number:#x} {:?}",
                name(number)
            );
        }
    }
}

/// Every number in which SVM codes occur.
fn svm_numbers() -> impl Iterator<Item = u32> {
    (0..0x1000).chain(0x8000_0000..=0x8000_ffff).chain(0xf000_0000..0xf000_0100).chain([u32::MAX])
}

/// Which of our SVM names Linux 6.1 does not print.
fn svm_not_in_6_1(code: u32) -> bool {
    match code {
        // Control and debug registers that no CPU has, or no guest is stopped at.
        0x00..=0x1f => !matches!(code & 0xf, 0 | 2..=4 | 8),
        0x20..=0x3f => code & 0xf > 7,
        0x40..=0x5f => matches!(code - 0x40, 21 | 28 | 29 | 30),
        0x91..=0x9f => !matches!(code, 0x94 | 0x98),
        0x8c | 0x8e | 0xa0 | 0xa1 | 0xa3..=0xa6 => true,
        0x8000_0014..=0x8000_001a | 0x8000_fffe | 0x8000_ffff => true,
        _ => false,
    }
}

#[test]
fn vmx_matches_the_print_format() {
    let table = between(FORMAT, "REC->exit_reason & 0xffff,", ") : __print_symbolic");
    let kernel = pairs(table, integer);
    assert_eq!(kernel.len(), 62);
    compare(&kernel, 0..0x1_0000, vmx::name, vmx::code, |n| VMX_NOT_IN_6_1.contains(&n));
}

#[test]
fn svm_matches_the_print_format() {
    let table = between(FORMAT, ") : __print_symbolic(REC->exit_reason,", "), (REC->isa");
    let kernel = pairs(table, integer);
    assert_eq!(kernel.len(), 108);
    compare(&kernel, svm_numbers(), svm::name, svm::code, svm_not_in_6_1);
}

#[test]
fn flags_match_the_print_format() {
    let table = between(FORMAT, "__print_flags(REC->exit_reason & ~0xffff, \" \",", ") : \"\"");
    for (bit, text) in pairs(table, integer) {
        assert_eq!(vmx::flag_names(bit), [text]);
    }
}

#[test]
fn vmx_matches_the_system_header() {
    let Some(text) = header("/usr/include/x86_64-linux-gnu/asm/vmx.h") else {
        return;
    };
    let numbers = defines(&text);
    let table = between(&text, "#define VMX_EXIT_REASONS \\", "#define VMX_EXIT_REASON_FLAGS");
    let kernel = pairs(table, |name| numbers.get(name).copied());
    assert!(kernel.len() >= 60, "{}", kernel.len());
    // A newer header than the one this was written with (6.1) has more of our names.
    compare(&kernel, 0..0x1_0000, vmx::name, vmx::code, |n| {
        VMX_NOT_IN_6_1.contains(&n) && !kernel.contains_key(&n)
    });
    for (define, number) in numbers {
        if let Some(name) = define.strip_prefix("EXIT_REASON_") {
            assert_eq!(vmx::name(number), Some(name));
        }
    }
    assert_eq!(vmx::FAILED_ENTRY, 0x8000_0000);
    assert!(text.contains("VMX_EXIT_REASONS_SGX_ENCLAVE_MODE"));
    assert_eq!(vmx::ENCLAVE_MODE, 0x0800_0000);
}

#[test]
fn svm_matches_the_system_header() {
    let Some(text) = header("/usr/include/x86_64-linux-gnu/asm/svm.h") else {
        return;
    };
    let numbers = defines(&text);
    let vectors: BTreeMap<&str, u32> = [
        "DE", "DB", "NMI", "BP", "OF", "BR", "UD", "NM", "DF", "", "TS", "NP", "SS", "GP", "PF",
        "", "MF", "AC", "MC", "XM",
    ]
    .into_iter()
    .zip(0..)
    .collect();
    let table = between(&text, "#define SVM_EXIT_REASONS \\", "#endif");
    let kernel = pairs(table, |name| match name.strip_suffix("_VECTOR") {
        Some(vector) => vectors.get(vector).copied(),
        None => numbers.get(name).copied(),
    });
    assert!(kernel.len() >= 100, "{}", kernel.len());
    compare(&kernel, svm_numbers(), svm::name, svm::code, |n| {
        svm_not_in_6_1(n) && !kernel.contains_key(&n)
    });
    // Codes that the header defines and prints no name for have one here.
    for (define, number) in numbers {
        if define.starts_with("SVM_EXIT_")
            && !matches!(define, "SVM_EXIT_EXCP_BASE" | "SVM_EXIT_LAST_EXCP" | "SVM_EXIT_SW")
        {
            assert!(svm::name(number).is_some(), "{define}");
        }
    }
}

#[test]
fn userspace_matches_the_system_header() {
    let Some(text) = header("/usr/include/linux/kvm.h") else {
        return;
    };
    let from = text.find("#define KVM_EXIT_UNKNOWN").expect("the first reason");
    let to = text.find("/* For KVM_EXIT_INTERNAL_ERROR */").expect("the end of the reasons");
    let reasons = defines(&text[from..to]);
    assert!(reasons.len() >= 38, "{}", reasons.len());
    for (define, number) in reasons {
        assert_eq!(userspace::name(number), Some(define));
        assert_eq!(userspace::code(define), Some(number));
    }
}
