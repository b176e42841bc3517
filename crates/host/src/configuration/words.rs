//! A command line in a text: the words behind a program that is QEMU.

/// Options of which one must follow.
const OPTIONS: [&str; 12] = [
    "-machine",
    "-M",
    "-cpu",
    "-smp",
    "-m",
    "-drive",
    "-device",
    "-enable-kvm",
    "-object",
    "-netdev",
    "-blockdev",
    "-accel",
];

use vmtax_events::setting::PART;

/// Other VMMs, and options of which one must follow (Cloud Hypervisor docs/, crosvm run --help, Firecracker --help).
const OTHERS: [&str; 3] = ["cloud-hypervisor", "firecracker", "crosvm"];
const OTHER_OPTIONS: [&str; 8] =
    ["--kernel", "--cpus", "--memory", "--disk", "--net", "--api-socket", "--api-sock", "--mem"];

/// Prompts of a shell.
const PROMPT: [char; 2] = ['$', '#'];

/// The words of the first command line of QEMU in a text, or of another VMM.
pub(super) fn command(text: &str) -> Option<Vec<String>> {
    let all = split(text);
    of_qemu(&all).or_else(|| of_other(&all))
}

fn of_other(all: &[String]) -> Option<Vec<String>> {
    let is_other = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or_default();
        OTHERS.contains(&name.trim_start_matches(PROMPT))
    };
    let words = &all[all.iter().position(is_other)?..];
    words.iter().any(|word| OTHER_OPTIONS.contains(&word.as_str())).then(|| words.to_vec())
}

fn of_qemu(all: &[String]) -> Option<Vec<String>> {
    let is_qemu = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or_default();
        // A prompt may touch it.
        name.trim_start_matches(PROMPT).starts_with("qemu-system")
            || matches!(name, "qemu-kvm" | "kvm")
            || is_variable(name)
    };
    let is_option = |word: &String| OPTIONS.contains(&word.replacen("--", "-", 1).as_str());
    // Another VM's line begins with its program, which is no option's value (`-pidfile /run/qemu-system-x86_64.pid`).
    let begins = |at: &usize| {
        let name = all[*at].rsplit('/').next().unwrap_or_default();
        let is_value = *at > 0 && all[*at - 1].starts_with('-');
        name.trim_start_matches(PROMPT).starts_with("qemu-system") && !is_value
    };
    let mut ends: Vec<usize> = (0..all.len()).filter(begins).collect();
    ends.push(all.len());
    // The first program of a line that has options.
    let lines = ends.iter().scan(0, |start, end| {
        let line = *start..*end;
        *start = *end;
        Some(line)
    });
    let mut programs = lines.filter_map(|line| {
        let at = line.clone().find(|at| is_qemu(&all[*at]))?;
        let rest = &all[at + 1..line.end];
        rest.iter().any(is_option).then_some((&all[at], rest))
    });
    let words: Vec<String> = match programs.next() {
        Some((program, rest)) => {
            let program = match is_variable(program) {
                true => "qemu-system-x86_64",
                false => program.trim_start_matches(PROMPT),
            };
            std::iter::once(program)
                .chain(rest.iter().map(String::as_str))
                .map(str::to_owned)
                .collect()
        }
        // A part of one.
        None if all.first().is_some_and(is_option) => {
            std::iter::once(PART.to_owned()).chain(all.iter().cloned()).collect()
        }
        None => return None,
    };
    words.iter().any(is_option).then_some(words)
}

/// `$QEMU` of a script.
fn is_variable(word: &str) -> bool {
    word.strip_prefix('$')
        .is_some_and(|name| name.trim_matches(['{', '}']).eq_ignore_ascii_case("qemu"))
}

/// Words as a shell splits them; a line that ends in a backslash, or is wrapped, goes on.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut open, mut quote) = (false, None);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(mark)) if letter == mark => quote = None,
            ('\\', None | Some('"')) => match letters.next() {
                Some('\n') | None => {}
                Some(next) => word.push(next),
            },
            (_, Some(_)) => word.push(letter),
            ('\'' | '"', None) => (open, quote) = (true, Some(letter)),
            (space, None) if space.is_whitespace() || space == '\0' => {
                if open || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                open = false;
            }
            _ => word.push(letter),
        }
    }
    if open || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_found() {
        for (text, expected) in [
            ("qemu-system-x86_64 -m 4G -cpu host\n", Some("qemu-system-x86_64|-m|4G|-cpu|host")),
            (
                "qemu-system-x86_64 -m 4G -pidfile /run/qemu-system-x86_64.pid -cpu host\n",
                Some("qemu-system-x86_64|-m|4G|-pidfile|/run/qemu-system-x86_64.pid|-cpu|host"),
            ),
            // Of two the first; what only names the program is none.
            (
                "qemu-system-x86_64 is slow:\nqemu-system-x86_64 -m 2G -accel kvm\n/usr/bin/qemu-system-x86_64 -cpu host\n",
                Some("qemu-system-x86_64|-m|2G|-accel|kvm"),
            ),
            (
                "$ sudo /usr/bin/kvm \\\n  -smp 2 \\\n  -name 'a b'\n",
                Some("/usr/bin/kvm|-smp|2|-name|a b"),
            ),
            (
                "root 1 99 /usr/libexec/qemu-kvm -cpu\nhost,+vmx\n",
                Some("/usr/libexec/qemu-kvm|-cpu|host,+vmx"),
            ),
            ("qemu-kvm\0-machine\0q35\0-name\0\"x\"\0", Some("qemu-kvm|-machine|q35|-name|x")),
            ("sudo $QEMU -cpu host$FLGS -m 2G\n", Some("qemu-system-x86_64|-cpu|host$FLGS|-m|2G")),
            (
                "-drive file=a.vmdk,format=vmdk -device x\n",
                Some("qemu-system|-drive|file=a.vmdk,format=vmdk|-device|x"),
            ),
            ("   -object iothread,id=t0 \\\n", Some("qemu-system|-object|iothread,id=t0")),
            (
                "$qemu-system-x86_64 -m 2G -enable-kvm\n",
                Some("qemu-system-x86_64|-m|2G|-enable-kvm"),
            ),
            (
                "$ target/debug/cloud-hypervisor --kernel k --memory size=512M\n",
                Some("target/debug/cloud-hypervisor|--kernel|k|--memory|size=512M"),
            ),
            ("firecracker is slow, says crosvm\n", None),
            ("qemu-system-x86_64 --version\n", None),
            ("kvm is slow: use qemu\n", None),
            ("", None),
        ] {
            let found = command(text).map(|words| words.join("|"));
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}
