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

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, Int32Array, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Event, Isa, Kind, NO_VCPU, Reason};

use crate::Error;
use crate::column::{Columns, Words};

/// Names and types, in the order of [`EventBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    vec![
        Field::new("time_ns", DataType::UInt64, false),
        Field::new("pid", DataType::UInt32, false),
        Field::new("tid", DataType::UInt32, false),
        Field::new("cpu", DataType::UInt32, false),
        Field::new("vcpu", DataType::UInt32, true),
        Field::new("kind", DataType::Utf8, false),
        Field::new("isa", DataType::Utf8, true),
        Field::new("reason", DataType::UInt32, true),
        Field::new("reason_flags", DataType::UInt32, true),
        Field::new("errno", DataType::Int32, true),
        Field::new("a", DataType::UInt64, true),
        Field::new("b", DataType::UInt64, true),
        Field::new("c", DataType::UInt64, true),
    ]
}

/// What the columns of one event hold, `None` for null.
#[derive(Default)]
struct Flat {
    kind: &'static str,
    reason: Option<Reason>,
    errno: Option<i32>,
    a: Option<u64>,
    b: Option<u64>,
    c: Option<u64>,
}

impl Flat {
    fn word(kind: &'static str) -> Flat {
        Flat { kind, ..Flat::default() }
    }

    fn reason(kind: &'static str, reason: Reason) -> Flat {
        Flat { kind, reason: Some(reason), ..Flat::default() }
    }

    fn one(kind: &'static str, a: u64) -> Flat {
        Flat { kind, a: Some(a), ..Flat::default() }
    }

    fn two(kind: &'static str, a: u64, b: u64) -> Flat {
        Flat { kind, a: Some(a), b: Some(b), ..Flat::default() }
    }

    fn three(kind: &'static str, a: u64, b: u64, c: u64) -> Flat {
        Flat { kind, a: Some(a), b: Some(b), c: Some(c), ..Flat::default() }
    }
}

fn pick(second: bool, words: [&'static str; 2]) -> &'static str {
    words[usize::from(second)]
}

fn flatten(kind: Kind) -> Flat {
    match kind {
        Kind::Exit { reason, info1, info2 } => {
            Flat { reason: Some(reason), ..Flat::two("exit", info1, info2) }
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

/// Collects events as columns.
#[derive(Default)]
pub(crate) struct EventBuilder {
    time_ns: UInt64Builder,
    pid: UInt32Builder,
    tid: UInt32Builder,
    cpu: UInt32Builder,
    vcpu: UInt32Builder,
    kind: StringBuilder,
    isa: StringBuilder,
    reason: UInt32Builder,
    reason_flags: UInt32Builder,
    errno: Int32Builder,
    a: UInt64Builder,
    b: UInt64Builder,
    c: UInt64Builder,
}

impl EventBuilder {
    pub(crate) fn push(&mut self, event: &Event) {
        let Event { time_ns, pid, tid, cpu, vcpu, kind } = *event;
        let flat = flatten(kind);
        self.time_ns.append_value(time_ns);
        self.pid.append_value(pid);
        self.tid.append_value(tid);
        self.cpu.append_value(cpu);
        self.vcpu.append_option((vcpu != NO_VCPU).then_some(vcpu));
        self.kind.append_value(flat.kind);
        self.isa.append_option(flat.reason.map(|r| r.isa.name()));
        self.reason.append_option(flat.reason.map(|r| r.code));
        self.reason_flags.append_option(flat.reason.map(|r| r.flags));
        self.errno.append_option(flat.errno);
        self.a.append_option(flat.a);
        self.b.append_option(flat.b);
        self.c.append_option(flat.c);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.time_ns.finish()),
            Arc::new(self.pid.finish()),
            Arc::new(self.tid.finish()),
            Arc::new(self.cpu.finish()),
            Arc::new(self.vcpu.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.isa.finish()),
            Arc::new(self.reason.finish()),
            Arc::new(self.reason_flags.finish()),
            Arc::new(self.errno.finish()),
            Arc::new(self.a.finish()),
            Arc::new(self.b.finish()),
            Arc::new(self.c.finish()),
        ]
    }
}

/// The events of a batch.
pub(crate) fn read(columns: Columns<'_>) -> Result<Vec<Event>, Error> {
    let time_ns: &UInt64Array = columns.required("time_ns")?;
    let pid: &UInt32Array = columns.required("pid")?;
    let tid: &UInt32Array = columns.required("tid")?;
    let cpu: &UInt32Array = columns.required("cpu")?;
    let vcpu: &UInt32Array = columns.nullable("vcpu")?;
    let kinds = KindColumns::of(columns)?;
    (0..columns.batch.num_rows())
        .map(|i| {
            Ok(Event {
                time_ns: time_ns.value(i),
                pid: pid.value(i),
                tid: tid.value(i),
                cpu: cpu.value(i),
                vcpu: if vcpu.is_null(i) { NO_VCPU } else { vcpu.value(i) },
                kind: kinds.get(i)?,
            })
        })
        .collect()
}

/// The columns that a [`Kind`] is put together from.
struct KindColumns<'a> {
    columns: Columns<'a>,
    kind: &'a StringArray,
    isa: Words<'a, Isa>,
    reason: &'a UInt32Array,
    reason_flags: &'a UInt32Array,
    errno: &'a Int32Array,
    a: &'a UInt64Array,
    b: &'a UInt64Array,
    c: &'a UInt64Array,
}

impl<'a> KindColumns<'a> {
    fn of(columns: Columns<'a>) -> Result<KindColumns<'a>, Error> {
        Ok(KindColumns {
            columns,
            kind: columns.required("kind")?,
            isa: columns.nullable_words("isa", Isa::from_name)?,
            reason: columns.nullable("reason")?,
            reason_flags: columns.nullable("reason_flags")?,
            errno: columns.nullable("errno")?,
            a: columns.nullable("a")?,
            b: columns.nullable("b")?,
            c: columns.nullable("c")?,
        })
    }

    /// The inverse of [`flatten`].
    fn get(&self, i: usize) -> Result<Kind, Error> {
        let word = self.kind.value(i);
        Ok(match word {
            "exit" => Kind::Exit { reason: self.reason(i)?, info1: self.a(i)?, info2: self.b(i)? },
            "entry" => Kind::Entry,
            "msr-read" | "msr-write" => {
                Kind::Msr { write: word == "msr-write", index: self.a(i)?, data: self.b(i)? }
            }
            "port-in" | "port-out" => Kind::Pio {
                write: word == "port-out",
                port: self.a(i)?,
                count: self.b(i)?,
                size: self.c(i)?,
            },
            "mmio-read-unsatisfied" => self.mmio(i, MmioAccess::UnsatisfiedRead)?,
            "mmio-read" => self.mmio(i, MmioAccess::Read)?,
            "mmio-write" => self.mmio(i, MmioAccess::Write)?,
            "fast-mmio" => Kind::FastMmio { gpa: self.a(i)? },
            "hypercall-kvm" => self.hypercall(i, HypercallInterface::Kvm)?,
            "hypercall-hyperv" => self.hypercall(i, HypercallInterface::HyperV)?,
            "hypercall-xen" => self.hypercall(i, HypercallInterface::Xen)?,
            "page-fault" => Kind::PageFault { gpa: self.a(i)?, error_code: self.b(i)? },
            "cpuid" => Kind::Cpuid { function: self.a(i)?, index: self.b(i)? },
            "cr-read" | "cr-write" => {
                Kind::Cr { write: word == "cr-write", number: self.a(i)?, value: self.b(i)? }
            }
            "apic-read" | "apic-write" => {
                Kind::Apic { write: word == "apic-write", register: self.a(i)?, value: self.b(i)? }
            }
            "ghcb-enter" => {
                Kind::GhcbEnter { code: self.a(i)?, info1: self.b(i)?, info2: self.c(i)? }
            }
            "ghcb-msr" => Kind::GhcbMsr { value: self.a(i)? },
            "tdvmcall" => Kind::Tdvmcall { leaf: self.a(i)? },
            "vmcs-read" | "vmcs-write" => {
                Kind::VmcsField { write: word == "vmcs-write", field: self.a(i)? }
            }
            "information" => Kind::Information { info1: self.a(i)?, info2: self.b(i)? },
            "userspace-exit" => {
                if self.errno.is_null(i) {
                    return Err(self.columns.bad(i, "errno", format!("is null for {word}")));
                }
                Kind::UserspaceExit { reason: self.a(i)?, errno: self.errno.value(i) }
            }
            "nested-exit" => Kind::NestedExit { reason: self.reason(i)? },
            "nested-inject" => Kind::NestedInject { reason: self.reason(i)? },
            "nested-enter" => Kind::NestedEnter,
            "wakeup" | "wakeup-polled" => {
                Kind::Wakeup { ns: self.a(i)?, polled: word == "wakeup-polled" }
            }
            "switch" | "switch-preempted" => {
                Kind::Switch { next_tid: self.a(i)?, preempted: word == "switch-preempted" }
            }
            "lost" => Kind::Lost { count: self.a(i)? },
            "thread-end" => Kind::ThreadEnd,
            _ => {
                let problem = format!("{word:?} is not a word it can hold");
                return Err(self.columns.bad(i, "kind", problem));
            }
        })
    }

    fn mmio(&self, i: usize, access: MmioAccess) -> Result<Kind, Error> {
        Ok(Kind::Mmio { access, gpa: self.a(i)?, len: self.b(i)? })
    }

    fn hypercall(&self, i: usize, interface: HypercallInterface) -> Result<Kind, Error> {
        Ok(Kind::Hypercall { interface, number: self.a(i)? })
    }

    fn reason(&self, i: usize) -> Result<Reason, Error> {
        let (Some(isa), false) = (self.isa.get_nullable(i)?, self.reason.is_null(i)) else {
            let problem = format!("is null for {}", self.kind.value(i));
            return Err(self.columns.bad(i, "reason", problem));
        };
        let flags = if self.reason_flags.is_null(i) { 0 } else { self.reason_flags.value(i) };
        Ok(Reason { isa, code: self.reason.value(i), flags })
    }

    fn a<T: TryFrom<u64>>(&self, i: usize) -> Result<T, Error> {
        self.number(i, self.a, "a")
    }

    fn b<T: TryFrom<u64>>(&self, i: usize) -> Result<T, Error> {
        self.number(i, self.b, "b")
    }

    fn c<T: TryFrom<u64>>(&self, i: usize) -> Result<T, Error> {
        self.number(i, self.c, "c")
    }

    fn number<T: TryFrom<u64>>(
        &self,
        i: usize,
        array: &UInt64Array,
        column: &'static str,
    ) -> Result<T, Error> {
        let kind = self.kind.value(i);
        if array.is_null(i) {
            return Err(self.columns.bad(i, column, format!("is null for {kind}")));
        }
        let value = array.value(i);
        T::try_from(value)
            .map_err(|_| self.columns.bad(i, column, format!("{value} is too large for {kind}")))
    }
}
