//! The structs of `kvm_exit.bpf.c`, field by field. Sizes are asserted on both sides.

use vmtax_events::NO_VCPU;

use crate::memory::Plain;

/// Buckets of a histogram: [`vmtax_events::HIST_BUCKETS`].
pub(crate) const BUCKETS: usize = 40;

/// `struct config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) cells: u32,
    pub(crate) threads: u32,
    pub(crate) exact: u32,
    pub(crate) filtered: u32,
    pub(crate) exit_vcpu: u32,
    pub(crate) fault_address: u32,
    pub(crate) xen_number: u32,
    pub(crate) switch_has_state: u32,
    pub(crate) vcpu_id: u32,
    pub(crate) vcpu_kvm: u32,
    pub(crate) svm_vmcb: u32,
    pub(crate) svm_vmcb01: u32,
    pub(crate) vmx_exit_reason: u32,
    pub(crate) vmx_qualification: u32,
    pub(crate) task_pid: u32,
    pub(crate) task_state: u32,
    pub(crate) ghcb_exit_code: u32,
    pub(crate) vmcs_register: [u32; VMCS_PROBES],
    pub(crate) raw: u32,
    pub(crate) sample: u32,
    pub(crate) slower_ns: u64,
    pub(crate) fields: [[Field; FIELDS]; TRACEPOINTS],
}

/// So many places in KVM's code can be watched for VMCS fields.
pub(crate) const VMCS_PROBES: usize = 4;

/// Numbers of a classic tracepoint's record that are read.
pub(crate) const FIELDS: usize = 4;

/// Tracepoints that programs sit on.
pub(crate) const TRACEPOINTS: usize = 23;

/// `struct field`: where a number lies in a classic tracepoint's record; its size is 0 when it has none such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) offset: u16,
    pub(crate) size: u16,
}

impl Config {
    /// As the programs read it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let numbers = [
            self.cells,
            self.threads,
            self.exact,
            self.filtered,
            self.exit_vcpu,
            self.fault_address,
            self.xen_number,
            self.switch_has_state,
            self.vcpu_id,
            self.vcpu_kvm,
            self.svm_vmcb,
            self.svm_vmcb01,
            self.vmx_exit_reason,
            self.vmx_qualification,
            self.task_pid,
            self.task_state,
            self.ghcb_exit_code,
        ];
        // The last stands where the programs have nothing.
        let choice = [self.raw, self.sample, 0];
        let numbers = numbers.iter().chain(&self.vmcs_register).chain(&choice);
        let mut bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        bytes.extend(self.slower_ns.to_le_bytes());
        let fields = self.fields.iter().flatten().flat_map(|field| [field.offset, field.size]);
        bytes.extend(fields.flat_map(u16::to_le_bytes));
        bytes
    }
}

/// `struct key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Key {
    pub(crate) reason: u32,
    pub(crate) thread: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) vcpu: u16,
    pub(crate) ancillary: u32,
    pub(crate) value: u64,
}

impl Key {
    pub(crate) const NESTED: u8 = 1;
    pub(crate) const ACCESS: u8 = 16;
    pub(crate) const ANCILLARY: u8 = 32;
    pub(crate) const SOLE: u8 = 64;

    /// As the programs see it.
    pub(crate) fn bytes(&self) -> [u8; size_of::<Key>()] {
        let mut bytes = [0; size_of::<Key>()];
        bytes[0..4].copy_from_slice(&self.reason.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8] = self.kind;
        bytes[9] = self.flags;
        bytes[10..12].copy_from_slice(&self.vcpu.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ancillary.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Which vCPU it was.
    pub(crate) fn vcpu(&self) -> u32 {
        if self.vcpu == u16::MAX { NO_VCPU } else { self.vcpu.into() }
    }

    /// 0 to 3: in the order of [`vmtax_events::Outcome`].
    pub(crate) fn outcome(&self) -> u8 {
        self.flags >> 1 & 7
    }
}

/// `struct cell`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Cell {
    pub(crate) untimed: u64,
    pub(crate) time: u64,
    pub(crate) not_min: u64,
    pub(crate) max: u64,
    pub(crate) square_low: u64,
    pub(crate) square_high: u64,
    pub(crate) histogram: [u32; BUCKETS],
    pub(crate) unused: [u64; 6],
}

impl Cell {
    pub(crate) const EMPTY: Cell = Cell {
        untimed: 0,
        time: 0,
        not_min: 0,
        max: 0,
        square_low: 0,
        square_high: 0,
        histogram: [0; BUCKETS],
        unused: [0; 6],
    };
}

/// `struct spans`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Spans {
    pub(crate) guest: u64,
    pub(crate) l2: u64,
    pub(crate) kernel: u64,
    pub(crate) user: u64,
    pub(crate) halted: u64,
    pub(crate) preempted: u64,
    pub(crate) unknown: u64,
}

/// `struct thread`. Words that only the programs use are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Thread {
    pub(crate) id: u64,
    pub(crate) vcpu_at: u64,
    pub(crate) kvm: u64,
    pub(crate) ended: u64,
    pub(crate) vcpu: u32,
    pub(crate) index: u32,
    pub(crate) state: u32,
    pub(crate) ancillary: u32,
    pub(crate) since: u64,
    pub(crate) out: u64,
    pub(crate) flags: u32,
    pub(crate) open_ancillary: u32,
    pub(crate) own: [u64; 14 + 24],
    pub(crate) spans: [Spans; 2],
    pub(crate) lines: [[u64; 4]; 16],
}

impl Thread {
    /// An exit is open.
    pub(crate) const OPEN: u32 = 1;

    pub(crate) const EMPTY: Thread = Thread {
        id: 0,
        vcpu_at: 0,
        kvm: 0,
        ended: 0,
        vcpu: 0,
        index: 0,
        state: 0,
        ancillary: 0,
        since: 0,
        out: 0,
        flags: 0,
        open_ancillary: 0,
        own: [0; 38],
        spans: [Spans { guest: 0, l2: 0, kernel: 0, user: 0, halted: 0, preempted: 0, unknown: 0 };
            2],
        lines: [[0; 4]; 16],
    };
}

/// `struct totals`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Totals {
    pub(crate) half: u32,
    pub(crate) on: u32,
    pub(crate) saw_wakeup: u64,
    pub(crate) cells_used: u64,
    pub(crate) threads_used: u64,
    pub(crate) exact_used: [u64; 2],
    pub(crate) coarse_used: [u64; 2],
    pub(crate) unpaired_exits: u64,
    pub(crate) unpaired_entries: u64,
    pub(crate) details_dropped: u64,
    pub(crate) lost: u64,
    pub(crate) raw_lost: u64,
}

/// `struct event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) time: u64,
    pub(crate) id: u64,
    pub(crate) cpu: u32,
    pub(crate) vcpu: u32,
    pub(crate) what: u32,
    pub(crate) reason: u32,
    pub(crate) words: [u64; 3],
}

impl Sent {
    /// As the programs send it; `None` for what is no event.
    pub(crate) fn read(bytes: &[u8]) -> Option<Sent> {
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Sent {
            time: long(0)?,
            id: long(8)?,
            cpu: word(16)?,
            vcpu: word(20)?,
            what: word(24)?,
            reason: word(28)?,
            words: [long(32)?, long(40)?, long(48)?],
        })
    }
}

// kvm_exit.bpf.c asserts the same.
const _: () = assert!(size_of::<Key>() == 24);
const _: () = assert!(size_of::<Cell>() == 256);
const _: () = assert!(size_of::<Spans>() == 56);
const _: () = assert!(size_of::<Thread>() == 1000);
const _: () = assert!(size_of::<Totals>() == 104);
const _: () = assert!(BUCKETS == vmtax_events::HIST_BUCKETS);

macro_rules! plain {
    ($($name:ident)*) => {$(
        // SAFETY: whole numbers; the size asserted above leaves no room for padding.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        unsafe impl Plain for $name {}
    )*};
}
plain!(Key Cell Spans Thread Totals);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_as_long_as_the_programs_have_it() {
        // kvm_exit.bpf.c asserts the same number.
        assert_eq!(Config::default().bytes().len(), 472);
    }
}
