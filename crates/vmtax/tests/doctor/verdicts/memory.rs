//! Verdicts about memory.

use super::*;

#[test]
fn memory() {
    check(
        &[
            ("thp-enabled", I, &[], O),
            ("thp-enabled", I, &[("thp enabled", "[always] madvise never\n")], O),
            ("thp-enabled", I, &[("thp enabled", "always madvise [never]\n")], C),
            ("thp-enabled", I, &[("thp enabled", "always madvise [sometimes]\n")], U),
            ("thp-enabled", I, &[("thp enabled", "madvise\n")], U),
            ("thp-enabled", I, &[("thp ", "-")], N),
            (
                "thp-enabled",
                I,
                &[("vm smaps", HUGETLB), ("thp enabled", "always madvise [never]\n")],
                N,
            ),
            ("thp-defrag", I, &[("thp defrag", "-")], U),
            (
                "thp-enabled",
                I,
                &[("thp hugepages-2048kB/enabled", "always inherit madvise [never]\n")],
                C,
            ),
            (
                "thp-enabled",
                I,
                &[
                    ("thp hugepages-2048kB/enabled", "-"),
                    ("thp enabled", "always madvise [never]\n"),
                ],
                C,
            ),
            (
                "thp-enabled",
                I,
                &[("vm cmdline", TD), ("thp enabled", "always madvise [never]\n")],
                N,
            ),
            (
                "thp-enabled",
                A,
                &[("vm cmdline", SNP), ("thp enabled", "always madvise [never]\n")],
                N,
            ),
            (
                "thp-enabled",
                A,
                &[("vm cmdline", SEV), ("thp enabled", "always madvise [never]\n")],
                C,
            ),
            ("thp-defrag", I, &[("thp defrag", "always defer defer+madvise madvise [never]\n")], C),
            ("thp-defrag", I, &[("thp defrag", "always [defer] defer+madvise madvise never\n")], O),
            ("thp-defrag", I, &[("vm cmdline", TD)], N),
            ("thp-shmem", I, &[], N),
            ("thp-shmem", I, &[("vm smaps", SHARED)], O),
            (
                "thp-shmem",
                I,
                &[
                    ("vm smaps", SHARED),
                    ("thp shmem_enabled", "always within_size advise [never] deny force\n"),
                ],
                C,
            ),
            (
                "thp-shmem",
                I,
                &[
                    ("vm smaps", SHARED),
                    ("thp shmem_enabled", "always within_size advise never [deny] force\n"),
                ],
                C,
            ),
            ("thp-shmem", I, &[("vm smaps", "-")], U),
            (
                "thp-shmem",
                I,
                &[("vm smaps", HUGETLB), ("thp shmem_enabled", "always [never]\n")],
                N,
            ),
            ("thp-backing", I, &[], O),
            ("thp-backing", I, &[("vm smaps", SMALL)], C),
            ("thp-backing", I, &[("vm smaps", SHARED)], C),
            ("thp-backing", I, &[("vm smaps", HUGETLB)], O),
            ("thp-backing", I, &[("vm smaps", UNTOUCHED)], U),
            ("thp-backing", I, &[("vm smaps", "-")], U),
            ("thp-backing", I, &[("vm smaps", "nothing of the kind\n")], U),
            ("thp-backing", I, &[("vm smaps", SMALL), ("vm cmdline", TD)], N),
            ("mapped-pages", I, &[], O),
            ("mapped-pages", I, &[("count pages_2m", "0\n")], C),
            ("mapped-pages", I, &[("count pages_2m", "0\n"), ("count pages_1g", "1\n")], O),
            ("mapped-pages", I, &[("count pages_2m", "0\n"), ("count pages_4k", "0\n")], U),
            ("mapped-pages", I, &[("count pages_2m", "many\n")], U),
            ("mapped-pages", I, &[("/sys/kernel/debug", "-")], U),
            ("mapped-pages", I, &[("vm cmdline", TD), ("count pages_2m", "0\n")], N),
            ("private-pages", I, &[], N),
            ("private-pages", A, &[("vm cmdline", SEV)], N),
            ("private-pages", I, &[("vm cmdline", TD)], O),
            ("private-pages", I, &[("vm cmdline", TD), ("count pages_2m", "0\n")], C),
            ("private-pages", A, &[("vm cmdline", SNP), ("count pages_2m", "0\n")], C),
            ("private-pages", I, &[("vm cmdline", TD), ("/sys/kernel/debug", "-")], C),
            (
                "private-pages",
                I,
                &[
                    ("vm cmdline", TD),
                    ("/sys/kernel/debug", "-"),
                    ("/proc/sys/kernel/osrelease", "7.2.0"),
                ],
                C,
            ),
            (
                "private-pages",
                I,
                &[
                    ("vm cmdline", TD),
                    ("/sys/kernel/debug", "-"),
                    ("/proc/sys/kernel/osrelease", "7.4.0"),
                ],
                U,
            ),
            (
                "private-pages",
                I,
                &[
                    ("vm cmdline", TD),
                    ("/sys/kernel/debug", "-"),
                    ("/proc/sys/kernel/osrelease", "x"),
                ],
                U,
            ),
            ("private-pages", I, &[("vm cmdline", "-")], U),
            ("nx-huge-pages", I, &[], O),
            ("nx-huge-pages", I, &[("kvm nx_huge_pages", "Y\n")], C),
            (
                "nx-huge-pages",
                I,
                &[
                    ("kvm nx_huge_pages", "Y\n"),
                    ("cpu vulnerabilities/itlb_multihit", "KVM: Mitigation: Split huge pages\n"),
                    ("cpu isolated", "\n"),
                ],
                O,
            ),
            // Isolated processors suggest guests that a split holds up.
            (
                "nx-huge-pages",
                I,
                &[
                    ("kvm nx_huge_pages", "Y\n"),
                    ("cpu vulnerabilities/itlb_multihit", "KVM: Mitigation: Split huge pages\n"),
                ],
                U,
            ),
            (
                "nx-huge-pages",
                I,
                &[("kvm nx_huge_pages", "Y\n"), ("cpu vulnerabilities/itlb_multihit", "-")],
                U,
            ),
            ("nx-huge-pages", I, &[("kvm nx_huge_pages", "?\n")], U),
            ("nx-huge-pages", I, &[("/sys/module/", "-")], N),
            ("ksm", I, &[], O),
            ("ksm", I, &[("/sys/kernel/mm/ksm/run", "1\n")], C),
            ("ksm", I, &[("/sys/kernel/mm/ksm/run", "7\n")], U),
            ("ksm", I, &[("/sys/kernel/mm/ksm/run", "-")], N),
        ],
        |host| verdicts(host, None),
    );
}
