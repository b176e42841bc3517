//! How much memory the probe may take without harm to others: a part of what is free, and of what control groups leave.

use std::fs;

/// The part of free memory that is taken at most.
const PART: u64 = 8;
/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that the probe may take; 0 if the kernel does not tell.
pub(super) fn bytes() -> u64 {
    let free = available(&read("/proc/meminfo")).unwrap_or(0);
    let groups = read("/proc/self/cgroup");
    let left = folders(&groups).into_iter().filter_map(|folder| left(&folder)).min();
    free.min(left.unwrap_or(u64::MAX)) / PART
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// `MemAvailable` of `/proc/meminfo`, bytes.
fn available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The folders of the groups that this process is in, and of those above them. In a container a path may be one of the host's,
/// which is not there: its root is, which is the container's.
fn folders(groups: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mount = match controllers {
            "" => GROUPS.to_owned(),
            _ if controllers.split(',').any(|name| name == "memory") => format!("{GROUPS}/memory"),
            _ => continue,
        };
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        all.extend(ends.map(|end| format!("{mount}{}", &path[..end])));
    }
    all
}

/// Bytes that a group may still take; `None` if it has no limit.
fn left(folder: &str) -> Option<u64> {
    let number = |name: &str| read(&format!("{folder}/{name}")).trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes")).unwrap_or(0);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read() {
        let text = "MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable:     50 kB\n";
        assert_eq!(available(text), Some(51_200));
        assert_eq!([available("MemAvailable: x kB"), available("")], [None, None]);
    }

    #[test]
    fn groups_above_count_too() {
        let both = folders("4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/d\n");
        let expected = [
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/d",
        ];
        assert_eq!(both, expected);
        assert_eq!(folders("0::/\n"), ["/sys/fs/cgroup", "/sys/fs/cgroup/"]);
        assert!(folders("nonsense").is_empty());
    }

    #[test]
    fn what_a_group_leaves_is_its_limit_less_its_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(left(path), None);
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        fs::write(folder.path().join("memory.current"), "60\n").unwrap();
        assert_eq!(left(path), None);
        fs::write(folder.path().join("memory.max"), "100\n").unwrap();
        assert_eq!(left(path), Some(40));
        fs::write(folder.path().join("memory.max"), "50\n").unwrap();
        assert_eq!(left(path), Some(0));
    }
}
