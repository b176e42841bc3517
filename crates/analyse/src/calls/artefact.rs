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
}

/// The known ones, with their sources.
///
/// NRIPS (APM volume 2, 15.7.1 "State Saved on Exit", nRIP): without it KVM's `__svm_skip_emulated_instruction` decodes the guest's
/// instruction to know where the next one is. Virtual VMLOAD and VMSAVE: APM volume 2, 15.33.1. Virtual GIF: 15.33.2.
pub const ARTEFACTS: [Artefact; 3] = [
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
];

/// How many instructions of a batch an artefact has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactFound {
    pub artefact: &'static Artefact,
    /// Instructions of the batch. What belongs to two artefacts is the first one's.
    pub instructions: u64,
}

/// The artefacts in a call tree of a run on this emulator; none where it has none of them.
pub fn artefacts(profiled: &ProfiledOperation<'_>, emulator: Option<&str>) -> Vec<ArtefactFound> {
    let Some(emulator) = emulator else { return Vec::new() };
    let known: Vec<&'static Artefact> = ARTEFACTS
        .iter()
        .filter(|one| one.emulators.iter().any(|name| emulator.starts_with(name)))
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
            TreePart::Handles(instructions) => {
                label.kind == CallKind::Cause
                    && label.level == 1
                    && instructions.contains(&label.name.as_str())
            }
        }
    }
}
