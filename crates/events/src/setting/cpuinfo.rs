//! The text of `/proc/cpuinfo`.

/// A field of the first processor: `model name`, `flags`, ...
pub fn field<'t>(info: &'t str, name: &str) -> Option<&'t str> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The name of the first processor; empty when the text has none. On arm64 it has numbers in place of a name.
pub fn model(info: &str) -> String {
    if let Some(name) = field(info, "model name") {
        return name.to_owned();
    }
    let number = |name: &str| u32::from_str_radix(field(info, name)?.strip_prefix("0x")?, 16).ok();
    let (Some(implementer), Some(part)) = (number("CPU implementer"), number("CPU part")) else {
        return String::new();
    };
    let known = PARTS.iter().find(|row| (row.0, row.1) == (implementer, part));
    known.map_or_else(
        || format!("arm64, implementer {implementer:#04x}, part {part:#05x}"),
        |(.., name)| (*name).to_owned(),
    )
}

/// Whether it is the text of arm64, which says of each processor who made it.
pub fn is_arm64(info: &str) -> bool {
    field(info, "CPU implementer").is_some()
}

/// Processors that run VMs, by implementer and part (MIDR_EL1): Linux arch/arm64/include/asm/cputype.h.
const PARTS: &[(u32, u32, &str)] = &[
    (0x41, 0xd03, "Arm Cortex-A53"),
    (0x41, 0xd07, "Arm Cortex-A57"),
    (0x41, 0xd08, "Arm Cortex-A72"),
    (0x41, 0xd0b, "Arm Cortex-A76"),
    (0x41, 0xd0c, "Arm Neoverse-N1"),
    (0x41, 0xd40, "Arm Neoverse-V1"),
    (0x41, 0xd47, "Arm Cortex-A710"),
    (0x41, 0xd49, "Arm Neoverse-N2"),
    (0x41, 0xd4f, "Arm Neoverse-V2"),
    (0x41, 0xd84, "Arm Neoverse-V3"),
    (0x41, 0xd8e, "Arm Neoverse-N3"),
    (0x43, 0x0af, "Cavium ThunderX2"),
    (0x46, 0x001, "Fujitsu A64FX"),
    (0x48, 0xd01, "HiSilicon TSV110"),
    (0x6d, 0xd49, "Microsoft Azure Cobalt 100"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1A"),
];

/// Whether the first processor has a flag.
pub fn has_flag(info: &str, flag: &str) -> bool {
    field(info, "flags").unwrap_or_default().split_ascii_whitespace().any(|word| word == flag)
}

/// Number of processors.
pub fn count(info: &str) -> usize {
    info.lines()
        .filter(|line| line.split(':').next().is_some_and(|key| key.trim() == "processor"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_first_processor() {
        let info = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC: 7B13\nflags\t\t: fpu svm\n\n\
                    processor\t: 1\nmodel name\t: other\nflags\t\t: vmx\n";
        assert_eq!(model(info), "AMD EPYC: 7B13");
        assert_eq!(field(info, "model"), Some("1"));
        assert!(has_flag(info, "svm") && !has_flag(info, "vmx") && !has_flag(info, "sv"));
        assert_eq!(count(info), 2);
        assert_eq!((model("").as_str(), field("", "flags"), count("")), ("", None, 0));
    }

    #[test]
    fn processors_of_arm64_have_names_by_their_numbers() {
        let info = |implementer: &str, part: &str| {
            format!(
                "processor\t: 0\nBogoMIPS\t: 125.00\nFeatures\t: fp asimd\nCPU implementer\t: {implementer}\n\
                 CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: {part}\nCPU revision\t: 1\n"
            )
        };
        for (implementer, part, expected) in [
            ("0x41", "0xd0c", "Arm Neoverse-N1"),
            ("0xc0", "0xac3", "Ampere-1"),
            // QEMU's `max`.
            ("0x00", "0x051", "arm64, implementer 0x00, part 0x051"),
            ("0x41", "what", ""),
        ] {
            assert_eq!(model(&info(implementer, part)), expected, "{implementer} {part}");
        }
        assert!(is_arm64(&info("0x41", "0xd0c")) && !is_arm64("flags : fpu"));
    }
}
