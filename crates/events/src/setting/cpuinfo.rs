//! The text of `/proc/cpuinfo`.

/// A field of the first processor: `model name`, `flags`, ...
pub fn field<'t>(info: &'t str, name: &str) -> Option<&'t str> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The name of the first processor; empty when the text has none.
pub fn model(info: &str) -> &str {
    field(info, "model name").unwrap_or_default()
}

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
        assert_eq!((model(""), field("", "flags"), count("")), ("", None, 0));
    }
}
