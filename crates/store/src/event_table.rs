//! Raw [`Event`]s as columns and back.
//!
//! One flat table holds every [`Kind`]: the word in `kind` says what happened and takes in the
//! kind's own small choices (read or write, which interface), and the columns `a`, `b`, `c` hold its
//! numbers. A column that a kind does not use is null. This table is the whole conversion:
//!
//! | `kind` | `a` | `b` | `c` | others |
//! |---|---|---|---|---|
//! | `exit` | info1 | info2 | | `isa`, `reason`, `reason_flags` |
//! | `entry`, `nested-enter`, `thread-end` | | | | |
//! | `msr-read`, `msr-write` | index | data | | |
//! | `port-in`, `port-out` | port | count | size | |
//! | `mmio-read-unsatisfied`, `mmio-read`, `mmio-write` | gpa | len | | |
//! | `fast-mmio` | gpa | | | |
//! | `hypercall-kvm`, `hypercall-hyperv`, `hypercall-xen` | number | | | |
//! | `page-fault` | gpa | error code | | |
//! | `cpuid` | function | index | | |
//! | `cr-read`, `cr-write` | number | value | | |
//! | `apic-read`, `apic-write` | register | value | | |
//! | `ghcb-enter` | code | info1 | info2 | |
//! | `ghcb-msr` | value | | | |
//! | `tdvmcall` | leaf | | | |
//! | `userspace-exit` | reason | | | `errno` |
//! | `vmcs-read`, `vmcs-write` | field | | | |
//! | `information` | info1 | info2 | | |
//! | `nested-exit`, `nested-inject` | | | | `isa`, `reason`, `reason_flags` |
//! | `wakeup`, `wakeup-polled` | ns | | | |
//! | `switch`, `switch-preempted` | next tid | | | |
//! | `lost` | count | | | |

use arrow_array::ArrayRef;
use arrow_schema::Field;
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Event, Isa, Kind, NO_PID, NO_VCPU, Reason};

use crate::column::{Columns, Stored, TableRow, Unless, stored};
use crate::word::Word;
use crate::{Error, Table};

/// What the columns of one event hold, `None` for null.
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    time_ns: u64,
    pid: u32,
    tid: u32,
    cpu: u32,
    vcpu: u32,
    kind: Word,
    isa: Option<Isa>,
    reason: Option<u32>,
    reason_flags: Option<u32>,
    errno: Option<i32>,
    a: Option<u64>,
    b: Option<u64>,
    c: Option<u64>,
}

const BLANK: Flat = Flat {
    time_ns: 0,
    pid: NO_PID,
    tid: 0,
    cpu: 0,
    vcpu: NO_VCPU,
    kind: Word("entry"),
    isa: None,
    reason: None,
    reason_flags: None,
    errno: None,
    a: None,
    b: None,
    c: None,
};

stored! { Flat in Table::Events, BLANK;
    time_ns: u64 = time_ns;
    pid: u32 = pid;
    tid: u32 = tid;
    cpu: u32 = cpu;
    vcpu: Unless<NO_VCPU> = vcpu;
    kind: Word = kind;
    isa: Option<Isa> = isa;
    reason: Option<u32> = reason;
    reason_flags: Option<u32> = reason_flags;
    errno: Option<i32> = errno;
    a: Option<u64> = a;
    b: Option<u64> = b;
    c: Option<u64> = c;
}

impl Flat {
    fn word(kind: &'static str) -> Flat {
        Flat { kind: Word(kind), ..BLANK }
    }

    fn reason(kind: &'static str, Reason { isa, code, flags }: Reason) -> Flat {
        let (isa, reason, reason_flags) = (Some(isa), Some(code), Some(flags));
        Flat { isa, reason, reason_flags, ..Flat::word(kind) }
    }

    fn one(kind: &'static str, a: u64) -> Flat {
        Flat { a: Some(a), ..Flat::word(kind) }
    }

    fn two(kind: &'static str, a: u64, b: u64) -> Flat {
        Flat { a: Some(a), b: Some(b), ..Flat::word(kind) }
    }

    fn three(kind: &'static str, a: u64, b: u64, c: u64) -> Flat {
        Flat { a: Some(a), b: Some(b), c: Some(c), ..Flat::word(kind) }
    }
}

impl From<&Event> for Flat {
    fn from(event: &Event) -> Flat {
        let Event { time_ns, pid, tid, cpu, vcpu, kind } = *event;
        Flat { time_ns, pid, tid, cpu, vcpu, ..flatten(kind) }
    }
}

/// The events of a batch.
pub(crate) fn read(batch: Columns<'_>) -> Result<Vec<Event>, Error> {
    let columns = Flat::open(batch, "")?;
    let event = |index| {
        let flat = Flat::get(&columns, index)?;
        let Flat { time_ns, pid, tid, cpu, vcpu, .. } = flat;
        let kind = flat.event_kind().map_err(|(column, what)| batch.bad(index, column, what))?;
        Ok(Event { time_ns, pid, tid, cpu, vcpu, kind })
    };
    (0..batch.batch.num_rows()).map(event).collect()
}

/// The column that a kind cannot do with, and why.
type Problem = (&'static str, String);

fn pick(second: bool, words: [&'static str; 2]) -> &'static str {
    words[usize::from(second)]
}

fn flatten(kind: Kind) -> Flat {
    match kind {
        Kind::Exit { reason, info1, info2 } => {
            Flat { a: Some(info1), b: Some(info2), ..Flat::reason("exit", reason) }
        }
        Kind::Entry => Flat::word("entry"),
        Kind::Msr { write, index, data } => {
            Flat::two(pick(write, ["msr-read", "msr-write"]), index.into(), data)
        }
        Kind::Pio { write, size, port, count } => {
            let word = pick(write, ["port-in", "port-out"]);
            Flat::three(word, port.into(), count.into(), size.into())
        }
        Kind::Mmio { access, len, gpa } => {
            let word = match access {
                MmioAccess::UnsatisfiedRead => "mmio-read-unsatisfied",
                MmioAccess::Read => "mmio-read",
                MmioAccess::Write => "mmio-write",
            };
            Flat::two(word, gpa, len.into())
        }
        Kind::FastMmio { gpa } => Flat::one("fast-mmio", gpa),
        Kind::Hypercall { interface, number } => {
            let word = match interface {
                HypercallInterface::Kvm => "hypercall-kvm",
                HypercallInterface::HyperV => "hypercall-hyperv",
                HypercallInterface::Xen => "hypercall-xen",
            };
            Flat::one(word, number)
        }
        Kind::PageFault { gpa, error_code } => Flat::two("page-fault", gpa, error_code),
        Kind::MapRequest { gfn, level } => Flat::two("map-request", gfn, level.into()),
        Kind::SetAttributes { start, end, attributes } => {
            Flat::three("set-attributes", start, end, attributes)
        }
        Kind::Cpuid { function, index } => Flat::two("cpuid", function.into(), index.into()),
        Kind::Cr { write, number, value } => {
            Flat::two(pick(write, ["cr-read", "cr-write"]), number.into(), value)
        }
        Kind::Apic { write, register, value } => {
            Flat::two(pick(write, ["apic-read", "apic-write"]), register.into(), value)
        }
        Kind::GhcbEnter { code, info1, info2 } => Flat::three("ghcb-enter", code, info1, info2),
        Kind::GhcbMsr { value } => Flat::one("ghcb-msr", value),
        Kind::Tdvmcall { leaf } => Flat::one("tdvmcall", leaf),
        Kind::VmcsField { write, field } => {
            Flat::one(pick(write, ["vmcs-read", "vmcs-write"]), field.into())
        }
        Kind::Information { info1, info2 } => Flat::two("information", info1, info2),
        Kind::UserspaceExit { reason, errno } => {
            Flat { errno: Some(errno), ..Flat::one("userspace-exit", reason.into()) }
        }
        Kind::NestedExit { reason } => Flat::reason("nested-exit", reason),
        Kind::NestedInject { reason } => Flat::reason("nested-inject", reason),
        Kind::NestedEnter => Flat::word("nested-enter"),
        Kind::Wakeup { ns, polled } => Flat::one(pick(polled, ["wakeup", "wakeup-polled"]), ns),
        Kind::Switch { next_tid, preempted } => {
            Flat::one(pick(preempted, ["switch", "switch-preempted"]), next_tid.into())
        }
        Kind::Lost { count } => Flat::one("lost", count),
        Kind::ThreadEnd => Flat::word("thread-end"),
    }
}

impl Flat {
    /// The inverse of [`flatten`].
    fn event_kind(&self) -> Result<Kind, Problem> {
        let word = self.kind.0;
        Ok(match word {
            "exit" => {
                Kind::Exit { reason: self.exit_reason()?, info1: self.a()?, info2: self.b()? }
            }
            "entry" => Kind::Entry,
            "msr-read" | "msr-write" => {
                Kind::Msr { write: word == "msr-write", index: self.a()?, data: self.b()? }
            }
            "port-in" | "port-out" => Kind::Pio {
                write: word == "port-out",
                port: self.a()?,
                count: self.b()?,
                size: self.c()?,
            },
            "mmio-read-unsatisfied" => self.mmio(MmioAccess::UnsatisfiedRead)?,
            "mmio-read" => self.mmio(MmioAccess::Read)?,
            "mmio-write" => self.mmio(MmioAccess::Write)?,
            "fast-mmio" => Kind::FastMmio { gpa: self.a()? },
            "hypercall-kvm" => self.hypercall(HypercallInterface::Kvm)?,
            "hypercall-hyperv" => self.hypercall(HypercallInterface::HyperV)?,
            "hypercall-xen" => self.hypercall(HypercallInterface::Xen)?,
            "page-fault" => Kind::PageFault { gpa: self.a()?, error_code: self.b()? },
            "map-request" => Kind::MapRequest { gfn: self.a()?, level: self.b()? },
            "set-attributes" => {
                Kind::SetAttributes { start: self.a()?, end: self.b()?, attributes: self.c()? }
            }
            "cpuid" => Kind::Cpuid { function: self.a()?, index: self.b()? },
            "cr-read" | "cr-write" => {
                Kind::Cr { write: word == "cr-write", number: self.a()?, value: self.b()? }
            }
            "apic-read" | "apic-write" => {
                Kind::Apic { write: word == "apic-write", register: self.a()?, value: self.b()? }
            }
            "ghcb-enter" => Kind::GhcbEnter { code: self.a()?, info1: self.b()?, info2: self.c()? },
            "ghcb-msr" => Kind::GhcbMsr { value: self.a()? },
            "tdvmcall" => Kind::Tdvmcall { leaf: self.a()? },
            "vmcs-read" | "vmcs-write" => {
                Kind::VmcsField { write: word == "vmcs-write", field: self.a()? }
            }
            "information" => Kind::Information { info1: self.a()?, info2: self.b()? },
            "userspace-exit" => {
                let errno = self.errno.ok_or_else(|| self.null("errno"))?;
                Kind::UserspaceExit { reason: self.a()?, errno }
            }
            "nested-exit" => Kind::NestedExit { reason: self.exit_reason()? },
            "nested-inject" => Kind::NestedInject { reason: self.exit_reason()? },
            "nested-enter" => Kind::NestedEnter,
            "wakeup" | "wakeup-polled" => {
                Kind::Wakeup { ns: self.a()?, polled: word == "wakeup-polled" }
            }
            "switch" | "switch-preempted" => {
                Kind::Switch { next_tid: self.a()?, preempted: word == "switch-preempted" }
            }
            "lost" => Kind::Lost { count: self.a()? },
            "thread-end" => Kind::ThreadEnd,
            _ => return Err(("kind", format!("{word:?} is not a word it can hold"))),
        })
    }

    fn mmio(&self, access: MmioAccess) -> Result<Kind, Problem> {
        Ok(Kind::Mmio { access, gpa: self.a()?, len: self.b()? })
    }

    fn hypercall(&self, interface: HypercallInterface) -> Result<Kind, Problem> {
        Ok(Kind::Hypercall { interface, number: self.a()? })
    }

    fn exit_reason(&self) -> Result<Reason, Problem> {
        let (Some(isa), Some(code)) = (self.isa, self.reason) else {
            return Err(self.null("reason"));
        };
        Ok(Reason { isa, code, flags: self.reason_flags.unwrap_or(0) })
    }

    fn a<T: TryFrom<u64>>(&self) -> Result<T, Problem> {
        self.number(self.a, "a")
    }

    fn b<T: TryFrom<u64>>(&self) -> Result<T, Problem> {
        self.number(self.b, "b")
    }

    fn c<T: TryFrom<u64>>(&self) -> Result<T, Problem> {
        self.number(self.c, "c")
    }

    fn null(&self, column: &'static str) -> Problem {
        (column, format!("is null for {}", self.kind.0))
    }

    fn number<T: TryFrom<u64>>(
        &self,
        value: Option<u64>,
        column: &'static str,
    ) -> Result<T, Problem> {
        let value = value.ok_or_else(|| self.null(column))?;
        T::try_from(value)
            .map_err(|_| (column, format!("{value} is too large for {}", self.kind.0)))
    }
}
