//! Names of code by address: kernels, their modules, and payloads.

use std::collections::HashMap;
use std::ops::Range;

use vmtax_guest::functions::{HostKernels, KernelFunctions, LoadedAddresses};
use vmtax_guest::layout::{self, arm};
use vmtax_machine::kernel::Architecture;

/// How control reaches an address that no instruction calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeGate {
    /// An interrupt: the instruction before it has completed.
    Interrupt,
    /// An exception: the instruction that raised it is restarted, or abandoned.
    Fault,
    /// An exception that comes after the instruction, or that QEMU raises in a separate instruction.
    Trap,
}

/// The kernel's stubs of interrupts, one for each vector; they jump to a common one.
const STUBS: [&str; 2] = ["irq_entries_start", "spurious_entries_start"];
/// Those of exceptions while the kernel starts (Linux arch/x86/kernel/head_64.S): page faults, by which it maps what it reads.
const EARLY_STUBS: &str = "early_idt_handler_array";
/// Exceptions that the instruction itself raises; it counts as completed.
const TRAPS: [&str; 6] = [
    "asm_exc_invalid_op",
    "asm_exc_int3",
    "asm_exc_debug",
    "asm_exc_device_not_available",
    "asm_exc_overflow",
    "asm_exc_coproc_segment_overrun",
];
/// Suffixes removed from names: the compiler appends them to copies and parts of a function.
const COPIES: [&str; 4] = [".cold", ".isra.", ".constprop.", ".llvm."];

/// A name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) function: String,
    /// Empty for the kernel's own.
    pub(crate) module: String,
}

/// Between arm64's code and that of its start, which is given back, lie more bytes of constants than between any two functions.
const CONSTANTS: u64 = 1 << 20;
/// What they are aligned to.
const SEGMENT: u64 = 64 << 10;

/// The code of one level.
#[derive(Debug, Default)]
pub(crate) struct LevelSymbols {
    is_arm: bool,
    /// Where arm64's kernel begins, and where its code ends.
    image: Range<u64>,
    /// Start and name, by address.
    starts: Vec<(u64, u32)>,
    names: Vec<Name>,
    gates: HashMap<u64, CodeGate>,
    /// Ranges of stubs, and what enters there.
    stubs: Vec<(Range<u64>, CodeGate)>,
}

/// Code before the first symbol.
pub(super) const UNKNOWN: u32 = 0;
pub(super) const PROGRAM: u32 = 1;
const PAYLOAD: u32 = 2;

/// Whether payloads lie there.
pub(crate) fn is_payload(address: u64) -> bool {
    (layout::CODE..layout::CODE + layout::CODE_MOST as u64).contains(&address)
}

/// Whether payloads of arm64 lie there.
pub(crate) fn is_arm_payload(address: u64) -> bool {
    (arm::MEMORY..arm::MEMORY + arm::BYTES as u64).contains(&address)
}

/// Whether programs lie there, not a kernel.
pub(crate) fn is_user(address: u64) -> bool {
    address >> 63 == 0
}

impl LevelSymbols {
    /// Without a kernel: only payloads and programs.
    pub(crate) fn none(architecture: Architecture) -> LevelSymbols {
        let name = |function: &str| Name { function: function.to_owned(), module: String::new() };
        let names = vec![name("[unknown]"), name("[program]"), name("payload")];
        LevelSymbols {
            is_arm: architecture == Architecture::Arm64,
            names,
            ..LevelSymbols::default()
        }
    }

    /// The symbols of a kernel. `at` has the current address of a module that has moved since its functions were read.
    fn of(
        functions: &KernelFunctions,
        at: &dyn Fn(&str) -> i64,
        architecture: Architecture,
    ) -> LevelSymbols {
        let mut symbols = LevelSymbols::none(architecture);
        let mut known: HashMap<Name, u32> = HashMap::new();
        let mut raw: Vec<(u64, &str, &str)> = Vec::new();
        for part in &functions.parts {
            let shift = at(&part.name);
            let mut address = 0_u64;
            for (step, name) in &part.functions {
                address = address.wrapping_add(*step);
                raw.push((address.wrapping_add_signed(shift), name, &part.name));
            }
        }
        raw.sort_by_key(|(address, ..)| *address);
        for (index, (address, name, module)) in raw.iter().enumerate() {
            let end = raw.get(index + 1).map_or(u64::MAX, |next| next.0);
            symbols.note_gate(*address, end, name);
            let name = Name { function: plain(name).to_owned(), module: (*module).to_owned() };
            let id = *known.entry(name).or_insert_with_key(|name| {
                symbols.names.push(name.clone());
                symbols.names.len() as u32 - 1
            });
            symbols.starts.push((*address, id));
        }
        if symbols.is_arm {
            symbols.image = image(&raw);
        }
        symbols
    }

    fn note_gate(&mut self, start: u64, end: u64, name: &str) {
        if STUBS.contains(&name) {
            self.stubs.push((start..end, CodeGate::Interrupt));
        } else if name == EARLY_STUBS {
            self.stubs.push((start..end, CodeGate::Fault));
        } else if TRAPS.contains(&name) {
            self.gates.insert(start, CodeGate::Trap);
        } else if name.starts_with("asm_sysvec_") || name == "asm_exc_nmi" {
            self.gates.insert(start, CodeGate::Interrupt);
        } else if name.starts_with("asm_exc_") {
            self.gates.insert(start, CodeGate::Fault);
        }
    }

    /// The number, for [`Symbols::name`], of the name at an address.
    pub(crate) fn find(&self, address: u64) -> u32 {
        if if self.is_arm { is_arm_payload(address) } else { is_payload(address) } {
            return PAYLOAD;
        }
        match self.starts.partition_point(|(start, _)| *start <= address) {
            // Behind the kernel's code, and of nothing that lies there.
            after
                if self.is_arm
                    && after > 0
                    && address >= self.image.end
                    && self.starts[after - 1].0 < self.image.end =>
            {
                UNKNOWN
            }
            0 if is_user(address) => PROGRAM,
            0 => UNKNOWN,
            after => self.starts[after - 1].1,
        }
    }

    /// Like [`Symbols::find`], with the range of addresses around it that have the same name.
    pub(crate) fn find_range(&self, address: u64) -> (u32, Range<u64>) {
        let payloads = layout::CODE..layout::CODE + layout::CODE_MOST as u64;
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        let start = after.checked_sub(1).map_or(0, |at| self.starts[at].0);
        let end = self.starts.get(after).map_or(u64::MAX, |next| next.0);
        let range = if payloads.contains(&address) {
            payloads
        } else if address < payloads.start {
            start..end.min(payloads.start)
        } else {
            start.max(if start < payloads.start { payloads.end } else { start })..end
        };
        (self.find(address), range)
    }

    pub(crate) fn name(&self, id: u32) -> &Name {
        self.names.get(id as usize).unwrap_or(&self.names[UNKNOWN as usize])
    }

    /// The number of a function of this name.
    pub(crate) fn id(&self, function: &str) -> Option<u32> {
        self.names.iter().position(|name| name.function == function).map(|at| at as u32)
    }

    /// Whether its kernel is of arm64.
    pub(crate) fn is_arm(&self) -> bool {
        self.is_arm
    }

    /// Where a function begins.
    pub(crate) fn start(&self, function: &str) -> Option<u64> {
        let id = self.id(function)?;
        self.starts.iter().find(|(_, one)| *one == id).map(|(start, _)| *start)
    }

    /// Whether this is an address of arm64's kernel itself, not of a module.
    pub(crate) fn is_image(&self, address: u64) -> bool {
        self.image.contains(&address)
    }

    /// Whether an interrupt or exception enters here.
    pub(crate) fn gate(&self, address: u64) -> Option<CodeGate> {
        let stub = self.stubs.iter().find(|(range, _)| range.contains(&address));
        stub.map(|(_, gate)| *gate).or_else(|| self.gates.get(&address).copied())
    }
}

/// Where a kernel's own functions begin, and where its code ends.
fn image(functions: &[(u64, &str, &str)]) -> Range<u64> {
    let own: Vec<u64> =
        functions.iter().filter(|(.., part)| part.is_empty()).map(|(start, ..)| *start).collect();
    let before = own.windows(2).find(|two| two[1] - two[0] >= CONSTANTS).map(|two| two[0]);
    let (Some(first), Some(last)) = (own.first(), before.or(own.last().copied())) else {
        return u64::MAX..u64::MAX;
    };
    *first..(last + 1).next_multiple_of(SEGMENT)
}

/// The name without the compiler's suffixes.
fn plain(name: &str) -> &str {
    let end = COPIES.iter().filter_map(|copy| name.find(copy)).filter(|at| *at > 0).min();
    &name[..end.unwrap_or(name.len())]
}

/// The code of L0, L1 and L2; L1 has the kernel of L0, but its modules may be at other addresses.
pub(crate) fn levels(
    kernels: &HostKernels,
    architecture: Architecture,
) -> Result<[LevelSymbols; 3], String> {
    let host = LevelSymbols::of(&kernels.functions, &|_| 0, architecture);
    let of_guest = |guest: &Option<LoadedAddresses>| match guest {
        None => Ok(LevelSymbols::none(architecture)),
        Some(guest) if guest.notes != kernels.host.notes => {
            Err("the guest that nests runs another kernel than its host".to_owned())
        }
        Some(guest) if !guest.own.is_empty() => {
            let kernel = kernels.functions.parts.iter().filter(|part| part.name.is_empty());
            let parts = kernel.chain(&guest.own).cloned().collect();
            Ok(LevelSymbols::of(&KernelFunctions { parts }, &|_| 0, architecture))
        }
        Some(guest) => {
            let at = |loaded: &LoadedAddresses, name: &str| {
                loaded.modules.iter().find(|module| module.0 == name).map(|module| module.1)
            };
            let shift = |name: &str| match (at(guest, name), at(&kernels.host, name)) {
                (Some(there), Some(here)) => there.wrapping_sub(here).cast_signed(),
                _ => 0,
            };
            Ok(LevelSymbols::of(&kernels.functions, &shift, architecture))
        }
    };
    Ok([host, of_guest(&kernels.guest)?, of_guest(&kernels.inner)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmtax_guest::functions::CodePart;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn kernels() -> HostKernels {
        let functions = |list: &[(u64, &str)]| {
            list.iter().map(|(step, name)| (*step, (*name).to_owned())).collect()
        };
        let kernel = functions(&[
            (BASE, "asm_exc_page_fault"),
            (0x10, "irq_entries_start"),
            (0x100, "foo"),
            (0x10, "bar.constprop.0"),
            (0x10, "foo.cold"),
            (0x10, "early_idt_handler_array"),
            (0x120, "early_idt_handler_common"),
        ]);
        let module = functions(&[(BASE + 0x1000_0000, "svm_vcpu_run"), (0x20, "npf_interception")]);
        let loaded = |at| LoadedAddresses {
            notes: 1,
            modules: vec![("kvm_amd".to_owned(), at)],
            builds: Vec::new(),
            own: Vec::new(),
        };
        HostKernels {
            functions: KernelFunctions {
                parts: vec![
                    CodePart { name: String::new(), functions: kernel },
                    CodePart { name: "kvm_amd".to_owned(), functions: module },
                ],
            },
            host: loaded(BASE + 0x1000_0000),
            guest: Some(loaded(BASE + 0x1000_4000)),
            inner: None,
        }
    }

    #[test]
    fn addresses_have_names() {
        let [host, guest, inner] = levels(&kernels(), Architecture::Amd64).unwrap();
        let name =
            |symbols: &LevelSymbols, address| symbols.name(symbols.find(address)).function.clone();
        assert_eq!(name(&host, BASE + 0x111), "foo");
        assert_eq!(name(&host, BASE + 0x120), "bar");
        assert_eq!(host.find(BASE + 0x130), host.find(BASE + 0x110));
        assert_eq!(name(&host, BASE - 1), "[unknown]");
        assert_eq!(name(&host, 0x40_0000), "[program]");
        assert_eq!(name(&inner, layout::CODE), "payload");
        assert_eq!(name(&host, BASE + 0x1000_0020), "npf_interception");
        assert_eq!(name(&guest, BASE + 0x1000_4020), "npf_interception");
    }

    #[test]
    fn code_of_arm64_ends_before_constants() {
        let mut kernels = kernels();
        // The code of the kernel's start.
        kernels.functions.parts[0].functions.push((0x20_0000, "start_kernel".to_owned()));
        let [host, _, inner] = levels(&kernels, Architecture::Arm64).unwrap();
        let name = |address| host.name(host.find(address)).function.clone();
        assert_eq!(name(BASE + 0x130), "foo");
        assert!(host.is_image(BASE) && host.is_image(BASE + 0xffff));
        assert!(!host.is_image(BASE - 4) && !host.is_image(BASE + 0x1_0000));
        assert_eq!(name(BASE + 0x1_0000), "[unknown]");
        assert_eq!(name(BASE + 0x1000_0020), "npf_interception");
        assert_eq!(inner.name(inner.find(arm::MEMORY)).function, "payload");
        assert_eq!(host.start("foo"), Some(BASE + 0x110));
    }

    #[test]
    fn gates_are_known_by_their_names() {
        let [host, ..] = levels(&kernels(), Architecture::Amd64).unwrap();
        assert_eq!(host.gate(BASE), Some(CodeGate::Fault));
        assert_eq!(host.gate(BASE + 1), None);
        assert_eq!(host.gate(BASE + 0x18), Some(CodeGate::Interrupt));
        assert_eq!(host.gate(BASE + 0x110), None);
        // The stub of vector 14.
        assert_eq!(host.gate(BASE + 0x140 + 14 * 9), Some(CodeGate::Fault));
        assert_eq!(host.gate(BASE + 0x140 + 0x120), None);
    }

    #[test]
    fn another_kernel_inside_is_refused() {
        let mut kernels = kernels();
        kernels.host.notes = 2;
        assert!(levels(&kernels, Architecture::Amd64).unwrap_err().contains("another kernel"));
    }
}
