//! What of a path is an emulator's and not hardware's: work that KVM does because the emulated processor lacks a feature.

use vmtax_events::CallKind;

use super::{CallTree, NodeLabel, ProfiledOperation};

/// A part of a path that hardware does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artefact {
    pub name: &'static str,
    /// Why it is there.
    pub cause: &'static str,
    /// Since when hardware does without it.
    pub gone_since: &'static str,
    /// The emulators, as a run names them, begin so.
    emulators: &'static [&'static str],
    part: TreePart,
}

/// Which part of a tree it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreePart {
    /// This function, called by that one, and all that it calls.
    Calls { caller: &'static str, function: &'static str },
    /// What handles these instructions of L1.
    Handles(&'static [&'static str]),
    /// These functions, in steps of VMs' lives.
    OfSteps(&'static [&'static str]),
}

/// The known ones, with their sources.
///
/// NRIPS (APM volume 2, 15.7.1 "State Saved on Exit", nRIP): without it KVM's `__svm_skip_emulated_instruction` decodes the guest's
/// instruction to know where the next one is. Virtual VMLOAD and VMSAVE: APM volume 2, 15.33.1. Virtual GIF: 15.33.2. REP: `clear_page_rep`, which is
/// one REP STOSQ and three more instructions, has 516 of QEMU's. ERMS: Linux's `arch/x86/lib` (`memset_64.S`, `memcpy_64.S`, `copy_user_64.S`)
/// and the patching of `clear_page` by `X86_FEATURE_ERMS`.
pub const ARTEFACTS: [Artefact; 4] = [
    Artefact {
        name: "instruction decode",
        cause: "QEMU's TCG has no next-RIP save (NRIPS), so KVM decodes the guest's instruction to skip it",
        gone_since: "AMD processors of 2008",
        emulators: &["QEMU TCG"],
        part: TreePart::Calls {
            caller: "__svm_skip_emulated_instruction",
            function: "x86_emulate_instruction",
        },
    },
    Artefact {
        name: "VMLOAD and VMSAVE exits",
        cause: "the emulated AMD processors have no virtual VMLOAD and VMSAVE, so each one of L1 is an exit to L0",
        gone_since: "AMD Zen, 2017",
        emulators: &["QEMU TCG", "Bochs"],
        part: TreePart::Handles(&["vmload", "vmsave"]),
    },
    Artefact {
        name: "STGI and CLGI exits",
        cause: "Bochs's ryzen has no virtual GIF, so each one of L1 is an exit to L0",
        gone_since: "AMD Zen, 2017",
        emulators: &["Bochs"],
        part: TreePart::Handles(&["stgi", "clgi"]),
    },
    Artefact {
        name: "clears and copies",
        cause: "QEMU's TCG counts each step of REP STOS and REP MOVS as an instruction, and it has no ERMS, without which Linux clears and copies by \
                loops; a processor has few instructions there, which take their time",
        gone_since: "Intel Ivy Bridge, 2012, and AMD Zen 3, 2020",
        emulators: &["QEMU TCG"],
        part: TreePart::OfSteps(&[
            "clear_page_rep",
            "clear_page_orig",
            "clear_highpages_kasan_tagged",
            "copy_page",
            "copy_page_regs",
            "__memset",
            "memset_orig",
            "__memcpy",
            "memcpy_orig",
            "copy_user_generic_string",
            "copy_user_generic_unrolled",
            "rep_stos_alternative",
            "rep_movs_alternative",
        ]),
    },
];

/// How many instructions of a batch an artefact has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactFound {
    pub artefact: &'static Artefact,
    /// Instructions of the batch. What belongs to two artefacts is the first one's.
    pub instructions: u64,
}

/// How a run names an emulator of arm64. All of these are x86's: arm64's clears and copies are the same instructions on a processor.
const ARM64: &str = "(arm64,";

/// The artefacts in a call tree of a run on this emulator; none where it has none of them.
pub fn artefacts(profiled: &ProfiledOperation<'_>, emulator: Option<&str>) -> Vec<ArtefactFound> {
    let Some(emulator) = emulator.filter(|name| !name.contains(ARM64)) else { return Vec::new() };
    let known: Vec<&'static Artefact> = ARTEFACTS
        .iter()
        .filter(|one| one.emulators.iter().any(|name| emulator.starts_with(name)))
        .filter(|one| profiled.waited.is_some() || !matches!(one.part, TreePart::OfSteps(_)))
        .collect();
    let mut sums = vec![0_u64; known.len()];
    let owners = owners(profiled.tree, &known);
    for (node, owner) in profiled.tree.nodes.iter().zip(owners) {
        if let Some(owner) = owner {
            sums[owner] = sums[owner].saturating_add(node.own);
        }
    }
    let found = known.into_iter().zip(sums).filter(|(_, sum)| *sum > 0);
    found.map(|(artefact, instructions)| ArtefactFound { artefact, instructions }).collect()
}

/// The artefact that each node belongs to: of those at it and above it the outermost.
fn owners(tree: &CallTree, known: &[&'static Artefact]) -> Vec<Option<usize>> {
    let mut owners: Vec<Option<usize>> = Vec::with_capacity(tree.nodes.len());
    for node in &tree.nodes {
        let above = node.parent.map(|parent| &tree.nodes[parent].label);
        let own = || known.iter().position(|one| one.part.begins(&node.label, above));
        owners.push(node.parent.and_then(|parent| owners[parent]).or_else(own));
    }
    owners
}

impl TreePart {
    fn begins(&self, label: &NodeLabel, above: Option<&NodeLabel>) -> bool {
        match self {
            TreePart::Calls { caller, function } => {
                label.kind == CallKind::Function
                    && label.name == *function
                    && above
                        .is_some_and(|above| above.name == *caller && above.level == label.level)
            }
            TreePart::OfSteps(functions) => {
                label.kind == CallKind::Function && functions.contains(&label.name.as_str())
            }
            TreePart::Handles(instructions) => {
                label.kind == CallKind::Cause
                    && label.level == 1
                    && instructions.contains(&label.name.as_str())
            }
        }
    }
}
