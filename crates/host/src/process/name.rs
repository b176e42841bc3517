//! The name of a VM in its VMM's command line. Command lines are untrusted.
//!
//! | VMM | where |
//! |---|---|
//! | QEMU, also libvirt's and Kata's | `-name NAME,...` or `-name guest=NAME,...` |
//! | Firecracker | `--id NAME` |
//! | crosvm and others | `--name NAME` |
//! | Cloud Hypervisor, which has no names, run by libvirt | `--event-monitor path=FOLDER/NAME-event-monitor-fifo`, before `--api-socket FOLDER/NAME-socket` |
//! | Cloud Hypervisor run by Kata and others | the file of `--api-socket`, or its folder where the file has the VMM's name |

/// Endings that libvirt gives to its files for a VM (`src/ch/ch_monitor.c`).
const LIBVIRT: [&str; 2] = ["-event-monitor-fifo", "-socket"];

/// Names of sockets that tell of the VMM and not of the VM.
const OF_VMM: [&str; 6] = ["api", "ch", "ch-api", "clh", "clh-api", "cloud-hypervisor"];

/// The name, if there is one.
pub(crate) fn name(words: &[String]) -> Option<String> {
    let flagged = words.iter().position(|w| matches!(w.as_str(), "-name" | "--name" | "--id"));
    if let Some(at) = flagged {
        return of_flag(words.get(at + 1)?);
    }
    let program = words.first()?.rsplit('/').next()?;
    if program.starts_with("cloud-hypervisor") { of_cloud_hypervisor(words) } else { None }
}

/// QEMU's options are parted by commas; one that is doubled is part of a value.
fn of_flag(value: &str) -> Option<String> {
    const DOUBLED: char = '\0';
    let value = value.replace(",,", "\0");
    let first = value.split(',').next()?;
    let guest = value.split(',').find_map(|option| option.strip_prefix("guest="));
    let name = guest.unwrap_or(first).replace(DOUBLED, ",");
    (!name.is_empty() && !name.starts_with("debug-threads=")).then_some(name)
}

fn of_cloud_hypervisor(words: &[String]) -> Option<String> {
    let path = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        let value = words.get(at + 1)?.split(',').next()?;
        Some(value.strip_prefix("path=").unwrap_or(value)).filter(|path| !path.starts_with("fd="))
    };
    let found = || [path("--event-monitor"), path("--api-socket")].into_iter().flatten();
    let of_libvirt = found().find_map(|path| {
        let file = path.rsplit('/').next()?;
        LIBVIRT.iter().find_map(|ending| file.strip_suffix(ending))
    });
    let name = of_libvirt.or_else(|| found().find_map(of_socket));
    name.filter(|name| !name.is_empty()).map(str::to_owned)
}

fn of_socket(path: &str) -> Option<&str> {
    let mut parts = path.rsplit('/');
    let file = parts.next()?.strip_suffix(".sock")?;
    if OF_VMM.contains(&file) { parts.next() } else { Some(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_command_lines() {
        for (words, expected) in [
            ("qemu -name vm1", Some("vm1")),
            ("qemu -name guest=vm1,debug-threads=on", Some("vm1")),
            ("qemu -name debug-threads=on,guest=vm1", Some("vm1")),
            ("/usr/bin/qemu-system-x86_64 -name guest=a,,b,debug-threads=on", Some("a,b")),
            ("qemu -name vm1,process=x", Some("vm1")),
            ("qemu -name debug-threads=on", None),
            ("firecracker --id a1", Some("a1")),
            ("qemu -name", None),
            ("qemu", None),
            ("", None),
            (
                "/usr/bin/cloud-hypervisor --api-socket fd=22 --event-monitor path=/run/libvirt/ch/web1-event-monitor-fifo",
                Some("web1"),
            ),
            ("cloud-hypervisor --api-socket /run/libvirt/ch/db-socket", Some("db")),
            (
                "cloud-hypervisor --cpus boot=2 --api-socket path=/run/vc/vm/3f0c/clh-api.sock",
                Some("3f0c"),
            ),
            ("/opt/cloud-hypervisor-static --api-socket /tmp/mail.sock,x=y", Some("mail")),
            ("cloud-hypervisor --api-socket /clh.sock", None),
            ("cloud-hypervisor --api-socket", None),
            ("cloud-hypervisor --kernel vmlinux", None),
            ("other --api-socket /tmp/mail.sock", None),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(name(&words).as_deref(), expected, "{words:?}");
        }
    }
}
